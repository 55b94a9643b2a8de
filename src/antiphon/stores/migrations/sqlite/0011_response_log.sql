-- What the list of responses shows without their contents: the model, and what they consist of, as JSON once they ended.
-- The index has all columns of the list, since a row's last columns follow its contents, over many pages.
ALTER TABLE responses ADD COLUMN model TEXT NOT NULL DEFAULT '';
ALTER TABLE responses ADD COLUMN summary TEXT NOT NULL DEFAULT '';
CREATE INDEX responses_log
    ON responses (tenant, id, status, background, created, ended, expires, previous, conversation, model, summary, hidden)
    WHERE hidden = 0;

"""The union of all events of a response stream, for the schema of streams in /openapi.json."""

from antiphon.protocol.types import events as ev
from antiphon.protocol.types import tool_events as tool_ev

StreamEvent = (
    ev.Created
    | ev.Queued
    | ev.InProgress
    | ev.Completed
    | ev.Failed
    | ev.Incomplete
    | ev.Error
    | ev.Keepalive
    | ev.OutputItemAdded
    | ev.OutputItemDone
    | ev.ContentPartAdded
    | ev.ContentPartDone
    | ev.OutputTextDelta
    | ev.OutputTextDone
    | ev.OutputTextAnnotationAdded
    | ev.RefusalDelta
    | ev.RefusalDone
    | ev.ReasoningTextDelta
    | ev.ReasoningTextDone
    | ev.ReasoningSummaryPartAdded
    | ev.ReasoningSummaryPartDone
    | ev.ReasoningSummaryTextDelta
    | ev.ReasoningSummaryTextDone
    | ev.FunctionCallArgumentsDelta
    | ev.FunctionCallArgumentsDone
    | ev.CustomToolCallInputDelta
    | ev.CustomToolCallInputDone
    | tool_ev.McpCallArgumentsDelta
    | tool_ev.McpCallArgumentsDone
    | tool_ev.McpCallInProgress
    | tool_ev.McpCallCompleted
    | tool_ev.McpCallFailed
    | tool_ev.McpListToolsInProgress
    | tool_ev.McpListToolsCompleted
    | tool_ev.McpListToolsFailed
    | tool_ev.CodeInterpreterCallInProgress
    | tool_ev.CodeInterpreterCallInterpreting
    | tool_ev.CodeInterpreterCallCompleted
    | tool_ev.CodeInterpreterCallCodeDelta
    | tool_ev.CodeInterpreterCallCodeDone
    | tool_ev.WebSearchCallInProgress
    | tool_ev.WebSearchCallSearching
    | tool_ev.WebSearchCallCompleted
    | tool_ev.FileSearchCallInProgress
    | tool_ev.FileSearchCallSearching
    | tool_ev.FileSearchCallCompleted
    | tool_ev.ImageGenerationCallInProgress
    | tool_ev.ImageGenerationCallGenerating
    | tool_ev.ImageGenerationCallCompleted
    | tool_ev.ImageGenerationCallPartialImage
    | tool_ev.ShellCallCommandAdded
    | tool_ev.ShellCallCommandDelta
    | tool_ev.ShellCallCommandDone
    | tool_ev.ShellCallOutputContentDelta
    | tool_ev.ShellCallOutputContentDone
    | tool_ev.CompactionCompacting
    | tool_ev.AudioDelta
    | tool_ev.AudioDone
    | tool_ev.AudioTranscriptDelta
    | tool_ev.AudioTranscriptDone
)

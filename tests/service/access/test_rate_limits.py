"""Who may ask for how much: counted for tenants and keys, charged once, settled with what it was."""

import pytest

from antiphon.config.rate_limits import Quota, TenantSpec
from antiphon.errors import Busy
from antiphon.service.access.principal import Principal
from antiphon.service.access.rate_limits import BILL, Account, Quotas, spend

ACME = Principal(tenant="acme", key="one")
OTHER_KEY = Principal(tenant="acme", key="two")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def quotas(all: Quota, clock: Clock | None = None, **own: TenantSpec) -> Quotas:
    made = Quotas(clock=clock or Clock())
    made.renew(all, own)
    return made


def remaining(account: Account) -> list[int | None]:
    return [None if one is None else one.remaining for one in account.standing()]


def refusal(account: Account, size: int = 4) -> Busy:
    with pytest.raises(Busy) as caught:
        account.admit(size)
    return caught.value


def test_without_any_nobody_is_held_to_anything() -> None:
    made = quotas(Quota())
    assert not made.active
    assert made.account(ACME).purses == ()
    assert made.account(ACME).standing() == (None, None)


def test_requests_are_refused_beyond_the_limit_until_time_has_passed() -> None:
    clock = Clock()
    account = quotas(Quota(requests_per_minute=3), clock).account(ACME)
    for left in (2, 1, 0):
        account.admit(4)
        assert remaining(account) == [left, None]
    error = refusal(account)
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 20.0)
    assert "3 requests per minute" in error.message
    assert "tenant" in error.message
    clock.now += 20
    account.admit(4)


def test_a_refusal_costs_nothing() -> None:
    account = quotas(Quota(requests_per_minute=2, tokens_per_minute=40)).account(ACME)
    account.admit(20).spend(35)
    before = account.standing()
    assert "tokens per minute" in refusal(account, 1000).message
    assert account.standing() == before
    account.admit(20)


def test_a_key_and_its_tenant_are_both_held_to_what_is_theirs() -> None:
    made = quotas(Quota(requests_per_minute=3, key_requests_per_minute=2))
    first, second = made.account(ACME), made.account(OTHER_KEY)
    first.admit(4)
    first.admit(4)
    assert "key" in refusal(first).message
    assert remaining(second) == [1, None]
    second.admit(4)
    assert "tenant" in refusal(second).message
    assert made.account(Principal(tenant="other", key="one")).standing()[0] is not None


def test_tokens_are_guessed_first_and_settled_with_what_they_were() -> None:
    account = quotas(Quota(tokens_per_minute=100)).account(ACME)
    bill = account.admit(40)
    assert remaining(account) == [None, 90]
    bill.spend(30)
    assert remaining(account) == [None, 70]
    bill.spend(5)  # of something else that was done for it
    bill.leave()
    assert remaining(account) == [None, 65]


def test_what_cost_nothing_is_given_back_and_what_nobody_tells_stays_as_guessed() -> None:
    account = quotas(Quota(tokens_per_minute=100)).account(ACME)
    account.admit(40).leave()
    assert remaining(account) == [None, 100]
    bill = account.admit(40)
    bill.spend(None)
    bill.leave()
    assert remaining(account) == [None, 90]


def test_more_than_there_was_is_a_debt() -> None:
    clock = Clock()
    account = quotas(Quota(tokens_per_minute=60), clock).account(ACME)
    account.admit(4).spend(180)
    assert remaining(account) == [None, 0]
    assert refusal(account).retry_after == pytest.approx(121.0)
    clock.now += 121
    account.admit(4)


def test_a_request_larger_than_the_limit_waits_for_a_quarter_of_it_and_no_longer() -> None:
    clock = Clock()
    account = quotas(Quota(tokens_per_minute=60), clock).account(ACME)
    account.admit(4).spend(50)
    assert refusal(account, 1_000_000).retry_after == pytest.approx(5)
    clock.now += 5
    bill = account.admit(1_000_000)
    assert remaining(account) == [None, 0]
    bill.leave()
    assert remaining(account) == [None, 15]


def test_so_many_at_once_and_no_more() -> None:
    made = quotas(Quota(concurrent_responses=2, key_concurrent_responses=1))
    first = made.account(ACME).admit(4)
    assert "responses of this key" in refusal(made.account(ACME)).message
    made.account(OTHER_KEY).admit(4)
    first.hold()
    first.leave()
    refusal(made.account(ACME))
    first.leave()
    made.account(ACME).admit(4)


def test_a_table_says_what_differs_for_a_tenant() -> None:
    made = quotas(
        Quota(requests_per_minute=5, tokens_per_minute=50),
        acme=TenantSpec(requests_per_minute=9, tokens_per_minute=0, background_queue=7),
    )
    assert remaining(made.account(ACME)) == [9, None]
    assert remaining(made.account(Principal(tenant="other"))) == [5, 50]
    assert (made.background_room("acme"), made.background_room("other")) == (7, 1000)
    made.renew(Quota(), {"acme": TenantSpec(background_queue=0, store_max_bytes=0), "other": TenantSpec()})
    assert (made.background_room("acme"), made.background_room("other")) == (None, 1000)
    assert made.store_bytes() == {"acme": None}


def test_new_settings_hold_at_once_and_what_was_spent_counts_on() -> None:
    made = quotas(Quota(requests_per_minute=5))
    made.account(ACME).admit(4)
    made.renew(Quota(requests_per_minute=3), {})
    assert remaining(made.account(ACME)) == [2, None]
    made.renew(Quota(), {})
    assert not made.active
    assert remaining(made.account(ACME)) == [None, None]


def test_what_runs_by_itself_is_on_the_bill_of_who_asked() -> None:
    made = quotas(Quota(tokens_per_minute=100, concurrent_responses=1))
    account = made.account(ACME)
    bill = account.admit(4)
    before = BILL.set(bill)
    with made.carried("acme") as carried:
        assert carried is bill
    BILL.reset(before)
    bill.leave()
    refusal(account)
    carried.spend(20)
    carried.leave()
    assert remaining(account) == [None, 80]


def test_what_had_waited_is_on_its_tenants_bill() -> None:
    made = quotas(Quota(tokens_per_minute=100))
    with made.carried("acme") as bill:
        spend(60)
    assert BILL.get() is None
    bill.leave()
    assert remaining(made.account(ACME)) == [None, 40]

"""Rate limits per tenant and key: admission, one charge per request, and settlement with the actual usage.

Covers `service/access/charges.py`.
"""

import pytest

from antiphon.config.rate_limits import QuotaSettings, TenantSpec
from antiphon.errors import Busy
from antiphon.observe.logs import LOG_CONTEXT, LogContext
from antiphon.service.access.api_keys import Principal
from antiphon.service.access.charges import (
    CURRENT_CHARGE,
    LimitSet,
    LimitStatus,
    charged_key,
    get_concurrency_limit,
    spend,
)
from antiphon.service.access.rate_limits import RateLimits

ACME = Principal(tenant="acme", key="one")
OTHER_KEY = Principal(tenant="acme", key="two")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_limits(default_quota: QuotaSettings, clock: Clock | None = None, **tenants: TenantSpec) -> RateLimits:
    rate_limits = RateLimits(clock=clock or Clock())
    rate_limits.configure(default_quota, tenants)
    return rate_limits


def list_remaining(limit_set: LimitSet) -> list[int | None]:
    return [None if one is None else one.remaining for one in limit_set.get_status()]


def expect_refusal(limit_set: LimitSet, size: int = 4) -> Busy:
    with pytest.raises(Busy) as caught:
        limit_set.admit(size)
    return caught.value


def test_without_quotas_nothing_is_limited() -> None:
    rate_limits = make_limits(QuotaSettings())
    assert not rate_limits.active
    assert rate_limits.get_limits(ACME).budgets == ()
    assert rate_limits.get_limits(ACME).get_status() == (None, None)


@pytest.mark.parametrize("field", ["requests_per_minute", "key_requests_per_minute"])
def test_a_limit_of_tenants_or_of_keys_makes_limits_active(field: str) -> None:
    assert make_limits(QuotaSettings(**{field: 1})).active
    assert make_limits(QuotaSettings(), acme=TenantSpec(**{field: 1})).active


def test_the_status_is_that_of_the_limit_with_the_least_remaining() -> None:
    limit_set = make_limits(QuotaSettings(requests_per_minute=60, key_requests_per_minute=30)).get_limits(ACME)
    limit_set.admit(0)
    assert limit_set.get_status()[0] == LimitStatus(30, 29, 2.0)
    equal = make_limits(QuotaSettings(tokens_per_minute=600)).get_limits(ACME)
    equal.admit(4 * 150)
    assert equal.get_status()[1] == LimitStatus(600, 450, 15.0)
    equal.admit_unchecked().spend(460)
    assert equal.get_status()[1] == LimitStatus(600, 0, 61.0)


def test_work_of_a_request_is_charged_to_its_key() -> None:
    assert (charged_key(), get_concurrency_limit()) == ("", 0)
    logged = LOG_CONTEXT.set(LogContext(tenant="acme", key="two"))
    assert charged_key() == "two"
    quota = QuotaSettings(concurrent_responses=5, key_concurrent_responses=3)
    charged = CURRENT_CHARGE.set(make_limits(quota).get_limits(ACME).admit(0))
    assert (charged_key(), get_concurrency_limit()) == ("one", 3)
    CURRENT_CHARGE.reset(charged)
    LOG_CONTEXT.reset(logged)


def test_requests_over_the_limit_are_refused_until_the_budget_refills() -> None:
    clock = Clock()
    limit_set = make_limits(QuotaSettings(requests_per_minute=3), clock).get_limits(ACME)
    for expected in (2, 1, 0):
        limit_set.admit(4)
        assert list_remaining(limit_set) == [expected, None]
    error = expect_refusal(limit_set)
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 20.0)
    assert "3 requests per minute" in error.message
    assert "tenant" in error.message
    clock.now += 20
    limit_set.admit(4)


def test_a_refused_request_is_not_charged() -> None:
    limit_set = make_limits(QuotaSettings(requests_per_minute=2, tokens_per_minute=40)).get_limits(ACME)
    limit_set.admit(20).spend(35)
    before = limit_set.get_status()
    assert "tokens per minute" in expect_refusal(limit_set, 1000).message
    assert limit_set.get_status() == before
    limit_set.admit(20)


def test_a_request_that_its_key_refuses_is_refunded_to_its_tenant() -> None:
    quota = QuotaSettings(requests_per_minute=9, tokens_per_minute=400, key_tokens_per_minute=40)
    limit_set = make_limits(quota, Clock()).get_limits(ACME)
    limit_set.admit(4).spend(39)
    assert list_available_tokens(limit_set) == [361, 1]
    assert "key" in expect_refusal(limit_set, 1000).message
    assert list_available_tokens(limit_set) == [361, 1]
    assert list_remaining(limit_set) == [8, 1]


def list_available_tokens(limit_set: LimitSet) -> list[float]:
    return [budget.tokens.available(Clock().now) for budget in limit_set.budgets if budget.tokens is not None]


def test_key_limits_and_tenant_limits_both_apply() -> None:
    rate_limits = make_limits(QuotaSettings(requests_per_minute=3, key_requests_per_minute=2))
    first, second = rate_limits.get_limits(ACME), rate_limits.get_limits(OTHER_KEY)
    first.admit(4)
    first.admit(4)
    assert "key" in expect_refusal(first).message
    assert list_remaining(second) == [1, None]
    second.admit(4)
    assert "tenant" in expect_refusal(second).message
    assert rate_limits.get_limits(Principal(tenant="other", key="one")).get_status()[0] is not None


def test_estimated_tokens_are_settled_with_the_actual_usage() -> None:
    limit_set = make_limits(QuotaSettings(tokens_per_minute=100)).get_limits(ACME)
    charge = limit_set.admit(40)
    assert list_remaining(limit_set) == [None, 90]
    charge.spend(30)
    assert list_remaining(limit_set) == [None, 70]
    charge.spend(5)  # usage of further work for the same request
    charge.leave()
    assert list_remaining(limit_set) == [None, 65]


def test_an_unused_charge_is_refunded_and_an_unreported_one_stays_as_estimated() -> None:
    limit_set = make_limits(QuotaSettings(tokens_per_minute=100)).get_limits(ACME)
    limit_set.admit(40).leave()
    assert list_remaining(limit_set) == [None, 100]
    charge = limit_set.admit(40)
    charge.spend(None)
    charge.leave()
    assert list_remaining(limit_set) == [None, 90]


def test_overspending_leaves_a_debt() -> None:
    clock = Clock()
    limit_set = make_limits(QuotaSettings(tokens_per_minute=60), clock).get_limits(ACME)
    limit_set.admit(4).spend(180)
    assert list_remaining(limit_set) == [None, 0]
    assert expect_refusal(limit_set).retry_after == pytest.approx(121.0)
    clock.now += 121
    limit_set.admit(4)


def test_a_request_larger_than_the_limit_waits_for_only_a_quarter_of_it() -> None:
    clock = Clock()
    limit_set = make_limits(QuotaSettings(tokens_per_minute=60), clock).get_limits(ACME)
    limit_set.admit(4).spend(50)
    assert expect_refusal(limit_set, 1_000_000).retry_after == pytest.approx(5)
    clock.now += 5
    charge = limit_set.admit(1_000_000)
    assert list_remaining(limit_set) == [None, 0]
    charge.leave()
    assert list_remaining(limit_set) == [None, 15]


def test_concurrent_responses_are_limited() -> None:
    rate_limits = make_limits(QuotaSettings(concurrent_responses=2, key_concurrent_responses=1))
    first = rate_limits.get_limits(ACME).admit(4)
    assert "concurrent responses: this key" in expect_refusal(rate_limits.get_limits(ACME)).message
    rate_limits.get_limits(OTHER_KEY).admit(4)
    first.hold()
    first.leave()
    expect_refusal(rate_limits.get_limits(ACME))
    first.leave()
    rate_limits.get_limits(ACME).admit(4)


def test_a_tenant_table_overrides_the_default_quota() -> None:
    rate_limits = make_limits(
        QuotaSettings(requests_per_minute=5, tokens_per_minute=50),
        acme=TenantSpec(requests_per_minute=9, tokens_per_minute=0, background_queue=7),
    )
    assert list_remaining(rate_limits.get_limits(ACME)) == [9, None]
    assert list_remaining(rate_limits.get_limits(Principal(tenant="other"))) == [5, 50]
    assert (rate_limits.get_background_limit("acme"), rate_limits.get_background_limit("other")) == (7, 1000)
    rate_limits.configure(
        QuotaSettings(), {"acme": TenantSpec(background_queue=0, store_max_bytes=0), "other": TenantSpec()}
    )
    assert (rate_limits.get_background_limit("acme"), rate_limits.get_background_limit("other")) == (None, 1000)
    assert rate_limits.get_store_bytes() == {"acme": None}


def test_new_settings_apply_at_once_and_spent_budget_carries_over() -> None:
    rate_limits = make_limits(QuotaSettings(requests_per_minute=5))
    rate_limits.get_limits(ACME).admit(4)
    rate_limits.configure(QuotaSettings(requests_per_minute=3), {})
    assert list_remaining(rate_limits.get_limits(ACME)) == [2, None]
    rate_limits.configure(QuotaSettings(), {})
    assert not rate_limits.active
    assert list_remaining(rate_limits.get_limits(ACME)) == [None, None]


def test_a_detached_run_is_charged_to_its_requester() -> None:
    rate_limits = make_limits(QuotaSettings(tokens_per_minute=100, concurrent_responses=1))
    limit_set = rate_limits.get_limits(ACME)
    charge = limit_set.admit(4)
    before = CURRENT_CHARGE.set(charge)
    with rate_limits.hold_charge("acme") as held_charge:
        assert held_charge is charge
    CURRENT_CHARGE.reset(before)
    charge.leave()
    expect_refusal(limit_set)
    held_charge.spend(20)
    held_charge.leave()
    assert list_remaining(limit_set) == [None, 80]


def test_a_queued_run_is_charged_to_its_tenant() -> None:
    rate_limits = make_limits(QuotaSettings(tokens_per_minute=100))
    with rate_limits.hold_charge("acme") as charge:
        spend(60)
    assert CURRENT_CHARGE.get() is None
    charge.leave()
    assert list_remaining(rate_limits.get_limits(ACME)) == [None, 40]

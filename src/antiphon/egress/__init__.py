"""The egress client for URLs from clients or models: resolve → vet → connect to a vetted address → limits.

Nothing else connects to such a URL. Every redirect passes the same checks, and no name is resolved twice.
"""

from antiphon.egress.client import EgressClient as EgressClient
from antiphon.egress.client import FetchLimits as FetchLimits
from antiphon.egress.client import FetchResult as FetchResult
from antiphon.egress.client import VettedTarget as VettedTarget
from antiphon.egress.http import RequestHeaders as RequestHeaders
from antiphon.egress.policy import EgressPolicy as EgressPolicy
from antiphon.egress.urls import Url as Url

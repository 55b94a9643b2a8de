"""The one way out to a URL that a client or a model named: resolve → vet → connect to the vetted address → caps.

Nothing else connects to such a URL. Every hop of a redirect takes the same way, and no name is resolved a second time.
"""

from antiphon.egress.client import Caps as Caps
from antiphon.egress.client import Egress as Egress
from antiphon.egress.client import Fetched as Fetched
from antiphon.egress.client import Sent as Sent
from antiphon.egress.client import Target as Target
from antiphon.egress.policy import Policy as Policy
from antiphon.egress.urls import Url as Url

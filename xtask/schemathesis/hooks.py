"""What the document cannot say, so that a check which fails over it alone is no failure.

Each entry is something that OpenAPI has no words for, and the server's answer names it.
"""

import itertools
import re

import schemathesis

# A request that fits the document may still be refused with 400, where this stands in its detail.
REFUSED_BY_RIGHT = (
    "is above `max`",  # min and max are compared with each other
    "there may be one condition",  # several conditions, and an id under which a retry must be the same request
    "a key has 1 to 512 bytes",  # lengths count characters there and bytes here
    "must be the cursor of the page before",  # a cursor is text that another reply gave
    "must have 1 to 255 bytes",  # an id, as a key
    "the smallest number cannot be taken away",  # a decrement by -2^63
    "a number beyond 2^53 must be written without fraction",  # 1e17 is an integer there, and has lost digits here
)

# What If-Match and If-None-Match look like. The generator makes "0" of it, whatever pattern the document gives.
TAGS = re.compile(r'(\*|(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*)')

# Every method that a batch has not means the counter of that name.
ALSO_COUNTERS = ("/api/v1/counters/batch-get", "/api/v1/counters/batch-increment")


CALLS = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    """Most generated ids are the same few. Two calls of three get their own, or they would all be replays or 422."""
    for name in ("Idempotency-Key", "X-Request-Id"):
        value = (case.headers or {}).get(name)
        number = next(CALLS)
        if isinstance(value, str) and 0 < len(value) < 200 and number % 3:
            case.headers[name] = f"{value}-{number}"


@schemathesis.hook
def filter_failure(context, failure, case, response):
    kind = type(failure).__name__
    if kind == "RejectedPositiveData":
        # 422: the id was used for another request, which examples do all the time.
        # 412: the counter is in another state than the one that If-Match names.
        refused = response.status_code == 400 and any(text in response.text for text in REFUSED_BY_RIGHT)
        tags = [value for name, value in (case.headers or {}).items() if name in ("If-Match", "If-None-Match")]
        garbled = any(not TAGS.fullmatch(value) for value in tags)
        return not (refused or garbled or response.status_code in (412, 422))
    if kind == "AcceptedNegativeData":
        # Not accepted: a batch of too many items may be refused for its bytes before they are counted.
        return response.status_code != 413
    if kind == "UseAfterFree" and "/counters/" in case.operation.path:
        # A counter that does not exist reads as 0, and adding to it makes it.
        return False
    if case.operation.path in ALSO_COUNTERS:
        return kind not in ("AllowHeaderMismatch", "UnsupportedMethodResponse")
    return True

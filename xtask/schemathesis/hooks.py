"""What the document cannot say, so that a check which fails over it alone is no failure.

Each entry is something that OpenAPI has no words for. The server's answer names it, and the request has what it names:
the right words about a request that gives no reason for them are a failure.
"""

import itertools
import re

import schemathesis

# What If-Match and If-None-Match look like. The generator makes "0" of it, whatever pattern the document gives.
TAGS = re.compile(r'(\*|(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*)')
CONDITIONS = ("if-match", "if-none-match")
IDS = ("idempotency-key", "x-request-id")

# Every method that a batch has not means the counter of that name.
ALSO_COUNTERS = ("/api/v1/counters/batch-get", "/api/v1/counters/batch-increment")
COUNTER_METHODS = {"GET", "HEAD", "PUT", "DELETE"}

BATCH_ITEMS_MAX = 10_000
SMALLEST = -(2**63)
EXACT_MAX = 2**53


def headers(case, names):
    """The values of these headers, as they are sent."""
    return [str(value) for name, value in (case.headers or {}).items() if name.lower() in names]


def everything(value):
    """All values in a body, however deep, the objects too."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from everything(part)


def objects(case):
    return [value for value in everything(case.body) if isinstance(value, dict)]


def texts(case):
    """Texts of the request that may be keys or ids."""
    parts = [case.path_parameters or {}, case.body, headers(case, IDS)]
    return [value for part in parts for value in everything(part) if isinstance(value, str)]


def number(value):
    """A number, which may be written as text; none for anything else."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?[0-9]+", value) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def bounds_cross(case):
    both = [(number(body.get("min")), number(body.get("max"))) for body in objects(case)]
    return any(low is not None and high is not None and low > high for low, high in both)


def has_several_conditions(case):
    conditions = headers(case, CONDITIONS) + [body["ifVersion"] for body in objects(case) if "ifVersion" in body]
    is_list = any("," in value or value.strip() != "*" for value in headers(case, CONDITIONS))
    return bool(headers(case, IDS)) and (len(conditions) > 1 or is_list)


def is_longer_in_bytes(length):
    # A text of so many characters may have more bytes; base64 has less, and what is encoded counts.
    return lambda case: any(len(text.encode("utf-8", "surrogatepass")) > length for text in texts(case))


def takes_the_smallest_away(case):
    deltas = [number(body.get("delta")) for body in objects(case)]
    return case.operation.path.endswith("/decrement") and SMALLEST in deltas


def has_an_inexact_number(case):
    return any(isinstance(value, float) and abs(value) > EXACT_MAX for value in everything(case.body))


def asks_for(*names):
    return lambda case: any(name in (case.query or {}) for name in names)


def has(*fields):
    return lambda case: any(field in body for body in objects(case) for field in fields)


def is_without_limit(case):
    limits = [body for body in objects(case) if "items" not in body and "type" not in body]
    return not isinstance(case.body, dict) or any(body.get("limit") is None for body in limits)


# A request that fits the document may still be refused with 400, where this stands in its detail and that holds of it.
REFUSED_BY_RIGHT = (
    ("is above `max`", bounds_cross),  # min and max are compared with each other
    ("there may be one condition", has_several_conditions),  # under an id a retry must be the same request
    ("a key has 1 to 512 bytes", is_longer_in_bytes(512)),  # lengths count characters there and bytes here
    ("must have 1 to 255 bytes", is_longer_in_bytes(255)),  # an id, as a key
    ("must be the cursor of the page before", lambda case: "cursor" in (case.query or {})),  # another reply gave it
    ("the smallest number cannot be taken away", takes_the_smallest_away),
    ("a number beyond 2^53 must be written without fraction", has_an_inexact_number),  # an integer there
    ("must have 1 to 512 bytes", is_longer_in_bytes(512)),  # a reason, as a key
    ("must be a time like", asks_for("from", "to", "at")),  # of the year 0, or of 61 seconds
    ("excludes from and to", asks_for("last")),
    ("excludes step, from and to", asks_for("at")),
    ("must not be earlier than from", asks_for("to")),
    ("must be later than from", asks_for("to")),
    ("no limit: give one", is_without_limit),  # a policy may have one
    ("is not a time zone", has("zone")),
    ("a bucket must not last longer than its window", has("bucketMs")),
    ("must have fewer than 4096 buckets", has("bucketMs")),
    ("would keep more than", has("history", "minutesMs", "hoursMs", "daysMs")),
    ("keeps nothing: give", has("history")),
    ("would keep more than 4096 buckets", has("keepMs", "bucketMs", "spanMs")),
    ("is longer than 400 buckets", has("window")),  # of uniques there are fewer
    ("must have 1 to 3 entries with `bodies`", has("bodies")),  # they may be large
    ("the query parameter dims", asks_for("dims")),  # names and values have a form
    ("no policy declares", asks_for("dims")),
    ("no roll-up of the counter's policy", asks_for("dims")),
    ("the counter counts something else", asks_for("dims")),  # only sums have parts
    ("`dims", has("dims")),
    (".dims", has("dims")),
    ("`rollups`", has("rollups")),  # names have a form, and come once
    ("`rollupKeep", has("rollupKeep")),  # of times that are rolled up by, and not too short
    ("`stripes`", has("stripes")),  # a power of two, and only for plain sums
    ("striped counters need a deployment on Redis", has("stripes")),
    ("expected a time like", has("at")),  # before 1970, or of 61 seconds
    ("`lateness`", has("lateness")),  # for windows, and no longer than they are kept
    ("`audit`", has("audit")),
    ("no policy has a trail kept of", lambda case: case.operation.path.endswith("/audit")),
)


def is_refused_by_right(case, response):
    status, detail = response.status_code, response.text
    if status == 400:
        garbled = [value for value in headers(case, CONDITIONS) if not TAGS.fullmatch(value)]
        if garbled and ("the header If-Match must be" in detail or "the header If-None-Match must be" in detail):
            return True
        return any(text in detail and holds(case) for text, holds in REFUSED_BY_RIGHT)
    if status == 429:
        return case.operation.path.endswith("/acquire")
    if status == 412:
        # The counter is in another state than the one that was named.
        return bool(headers(case, CONDITIONS))
    if status == 422:
        # The id was used for another request, which examples do all the time.
        return bool(headers(case, IDS)) or any("requestId" in body for body in objects(case))
    return False


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
    """Whether a failure is one."""
    kind, path = type(failure).__name__, case.operation.path
    if kind == "RejectedPositiveData":
        return not is_refused_by_right(case, response)
    if kind == "AcceptedNegativeData" and path in ALSO_COUNTERS and response.status_code == 413:
        # Not accepted: a batch of too many items may be refused for its bytes before they are counted.
        return not any(isinstance(value, list) and len(value) > BATCH_ITEMS_MAX for value in everything(case.body))
    if kind == "UseAfterFree" and path.startswith("/api/v1/counters/{key}"):
        # A counter that does not exist reads as 0, and says so.
        return response.status_code != 200 or response.json().get("exists") is not False
    if kind == "UnsupportedMethodResponse" and path in ALSO_COUNTERS:
        return response.request.method not in COUNTER_METHODS
    if kind == "AllowHeaderMismatch" and path in ALSO_COUNTERS:
        allowed = {method.strip() for method in ",".join(response.headers.get("allow", [])).split(",")}
        return allowed != COUNTER_METHODS | {"POST"}
    return True

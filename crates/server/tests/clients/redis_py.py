"""The Python client: python redis_py.py <port> <newest|distribution>. Prints `restart` and waits where the server is to be
killed and started again, and `fine` at the end."""

import asyncio
import sys
import threading

import redis
import redis.asyncio

PORT = int(sys.argv[1])
IS_NEWEST = sys.argv[2] == "newest"


def refuses(error, text, call):
    try:
        call()
    except error as refusal:
        assert text in str(refusal), refusal
        return
    raise AssertionError(f"not refused: {text}")


def restart():
    print("restart", flush=True)
    assert sys.stdin.readline() == "restarted\n"


def counters(r):
    assert r.ping() and r.client_getname() in ("py", b"py")
    assert r.incr("a") == 1 and r.incrby("a", 9) == 10 and r.decr("a", 3) == 7 and r.decrby("a") == 6
    assert int(r.get("a")) == 6 and r.get("nosuch") is None and r.exists("a", "a", "nosuch") == 2
    assert r.mset({"c": 1, "{c}d": 2}) is True and r.mget("c", "{c}d", "nosuch") == [b"1", b"2", None]
    assert r.set("b", 5, nx=True) is True and r.set("b", 6, nx=True) is None
    assert r.set("b", 6, xx=True, get=True) == b"5" and r.getset("b", 7) == b"6" and r.getdel("b") == b"7"
    assert r.type("c") == b"string" and r.delete("c", "{c}d") == 2 and r.unlink("c") == 0
    assert r.incr("edge", 2**63 - 1) == 2**63 - 1
    refuses(redis.ResponseError, "would overflow", lambda: r.incr("edge"))
    # Ids are remembered longer than what they counted, so each run has its own.
    request = f"request {r.client_id()}"
    assert r.execute_command("Q.ADD", "q", 5, "ID", request) == [5, 5, 1, 0]
    assert r.execute_command("Q.ADD", "q", 5, "ID", request) == [5, 5, 1, 1]


def expiry(r):
    assert r.set("t", 5, ex=100) is True and 0 < r.ttl("t") <= 100 and 0 < r.pttl("t") <= 100_000
    assert r.persist("t") is True and r.ttl("t") == -1 and r.ttl("nosuch") == -2
    assert r.expire("t", 1000) and r.expire("t", 100, gt=True) is False and r.expireat("t", 99999999999)
    assert r.expiretime("t") == 99999999999 and r.getex("t", persist=True) == b"5" and r.expire("t", 0) is True
    assert r.exists("t") == 0 and r.set("t", 1, px=100_000) is True and r.set("t", 2, keepttl=True) is True
    assert 0 < r.ttl("t") <= 100


def pipelines(r):
    with r.pipeline(transaction=False) as pipe:
        for _ in range(1000):
            pipe.incr("p")
        assert pipe.execute() == list(range(1, 1001))
    with r.pipeline(transaction=False) as pipe:
        replies = pipe.incr("p").set("p", "word").incr("p").execute(raise_on_error=False)
        assert replies[0] == 1001 and isinstance(replies[1], redis.ResponseError) and replies[2] == 1002, replies


def transactions(r):
    with r.pipeline(transaction=True) as pipe:
        assert pipe.incr("m").incr("m").get("m").execute() == [1, 2, b"2"]
    with r.pipeline() as pipe:
        pipe.incr("m").execute_command("NOSUCH")
        refuses(redis.ResponseError, "unknown command", pipe.execute)
    assert int(r.get("m")) == 2
    # What read-modify-write looks like: WATCH, and again if somebody came in between.
    r.set("w", 1)
    disturbed = []

    def double(pipe):
        value = int(pipe.get("w"))
        if not disturbed:
            disturbed.append(r.incr("w"))
        pipe.multi()
        pipe.set("w", value * 2)

    assert r.transaction(double, "w") == [True] and int(r.get("w")) == 4
    with r.pipeline() as pipe:
        pipe.watch("w")
        r.incr("w")
        pipe.multi()
        pipe.incr("w")
        refuses(redis.WatchError, "", pipe.execute)


def walks(r):
    r.mset({f"user:{{u}}:{number}": number for number in range(500)})
    assert sorted(r.scan_iter("user:*", count=7)) == sorted(f"user:{{u}}:{number}".encode() for number in range(500))
    assert sorted(r.scan_iter(count=10)) == sorted(r.keys("*")) and r.dbsize() == len(r.keys())


def introspection(r):
    assert r.info()["redis_version"].startswith("7.") and r.info("keyspace")["db0"]["keys"] == r.dbsize()
    assert r.config_get("maxmemory") == {"maxmemory": "0"} and any(c["name"] == "py" for c in r.client_list())
    assert r.command_count() > 50 and "get" in r.command() and r.command_getkeys("MSET", "a", 1, "b", 2)
    assert r.client_id() > 0 and r.time()[0] > 1_700_000_000 and r.echo("x") == b"x"
    if IS_NEWEST:
        assert r.client_info()["lib-name"].startswith("redis-py"), r.client_info()


def refusals(r):
    refuses(redis.ResponseError, "not an integer", lambda: r.set("word", "hello"))
    refuses(redis.ResponseError, "unknown command", lambda: r.lpush("list", 1))
    refuses(redis.ResponseError, "syntax error", lambda: r.execute_command("SET", "a", 1, "FOO"))
    refuses(redis.ResponseError, "1 to 512 bytes", lambda: r.get("k" * 513))
    with_password = redis.Redis(port=PORT, username="nobody", password="secret")
    refuses(redis.RedisError, "invalid username-password pair", with_password.ping)
    refuses(redis.ResponseError, "out of range", redis.Redis(port=PORT, db=1).ping)
    assert redis.Redis(port=PORT, username="default", password="any").ping()


def threads(r):
    def count():
        own = redis.Redis(port=PORT)
        for _ in range(500):
            own.incr("shared")

    running = [threading.Thread(target=count) for _ in range(8)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    assert int(r.get("shared")) == 4000


def everything(**options):
    r = redis.Redis(port=PORT, client_name="py", **options)
    r.flushall()
    for part in (counters, expiry, pipelines, transactions, walks, introspection, refusals, threads):
        part(r)
    # The connections in the pool are dead afterwards; the first command on one finds out and opens another.
    before = r.incr("kept")
    restart()
    try:
        r.ping()
    except redis.ConnectionError:
        pass
    assert r.incr("kept") == before + 1
    assert r.flushall() and r.dbsize() == 0


async def asynchronous(**options):
    async with redis.asyncio.Redis(port=PORT, **options) as r:
        counted = await asyncio.gather(*(r.incr("async") for _ in range(50)))
        assert sorted(counted) == list(range(1, 51))
        async with r.pipeline(transaction=True) as pipe:
            assert await pipe.incr("async").get("async").execute() == [51, b"51"]
        assert [key async for key in r.scan_iter("as*")] == [b"async"]


for protocol in (2, 3) if IS_NEWEST else (None,):
    options = {} if protocol is None else {"protocol": protocol}
    everything(**options)
    asyncio.run(asynchronous(**options))
print("fine")

"""The Python client of a cluster: python redis_py.py <port> ... Prints `kill` and waits where a node is to be killed, and
`fine` at the end."""

import logging
import sys
import time

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException

logging.disable()  # it tells of every failure, at length
PORTS = [int(port) for port in sys.argv[1:]]
IS_NEWEST = not redis.__version__.startswith("4.")
KEYS = [f"counter:{number}" for number in range(200)]


def counters(r):
    for key in KEYS:
        assert r.incr(key) == 1 and int(r.get(key)) == 1
    assert r.mset({"{t}a": 1, "{t}b": 2}) is True and r.mget("{t}a", "{t}b", "{t}c") == [b"1", b"2", None]
    assert r.mget_nonatomic(*KEYS) == [b"1"] * len(KEYS)
    assert r.delete("{t}a", "{t}b") == 2 and r.keyslot("foo") == 12182
    assert r.set("t", 5, ex=100) is True and 0 < r.ttl("t") <= 100 and r.persist("t") and r.ttl("t") == -1


def pipelines(r):
    with r.pipeline() as pipe:
        for key in KEYS:
            pipe.incr(key)
        assert pipe.execute() == [2] * len(KEYS)
    if IS_NEWEST:
        with r.pipeline(transaction=True) as pipe:
            assert pipe.incr("{m}a").incr("{m}b").get("{m}a").execute() == [1, 1, b"1"]


def replicas():
    r = RedisCluster(host="127.0.0.1", port=PORTS[0], read_from_replicas=True)
    for key in KEYS:
        assert int(r.get(key)) == 2


def walks(r):
    """Keys are walked, listed and counted at those that lead, and put together. By itself the client does so for SCAN alone."""
    leaders = RedisCluster.PRIMARIES
    wanted = {key.encode() for key in KEYS} | {b"t"} | ({b"{m}a", b"{m}b"} if IS_NEWEST else set())
    until = time.monotonic() + 60
    while True:
        keys, size = r.keys(target_nodes=leaders), r.dbsize(target_nodes=leaders)
        found = list(r.scan_iter(count=10)), keys, size, r.randomkey() in wanted
        # The lead of some partition may have moved from a node to one that was asked before.
        if all(sorted(keys) == sorted(wanted) for keys in found[:2]) and found[2:] == (len(wanted), True):
            return
        if time.monotonic() > until:
            raise AssertionError(found)
        r = connect()


def connect():
    return RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port) for port in PORTS])


def recovery(r):
    print("kill", flush=True)
    assert sys.stdin.readline() == "killed\n"
    until = time.monotonic() + 60
    for key in KEYS:
        while True:
            try:
                r = r or connect()
                assert r.execute_command("Q.ADD", key, 1, "ID", "after")[0] == 3
                break
            except (redis.RedisError, RedisClusterException) as error:
                if time.monotonic() > until:
                    raise AssertionError("it does not recover") from error
                time.sleep(0.1)
                # Version 4 fails to look for the others when it has lost one; programs begin anew.
                r = r if IS_NEWEST else None


r = connect()
for part in (counters, pipelines):
    part(r)
replicas()
walks(r)
recovery(r)
print("fine")

// ioredis as the client of a cluster: node ioredis.cjs <port> ... Prints `kill` and waits where a node is to be killed, and
// `fine` at the end.
const assert = require('node:assert/strict');
const readline = require('node:readline');
const { Cluster } = require('ioredis');

const ports = process.argv.slice(2).map(Number);
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const keys = Array.from({ length: 200 }, (_, number) => `counter:${number}`);

async function counters(redis) {
  assert.deepEqual(await Promise.all(keys.map((key) => redis.incr(key))), keys.map(() => 1));
  assert.deepEqual(await Promise.all(keys.map((key) => redis.get(key))), keys.map(() => '1'));
  assert.equal(await redis.mset('{t}a', 1, '{t}b', 2), 'OK');
  assert.deepEqual(await redis.mget('{t}a', '{t}b', '{t}c'), ['1', '2', null]);
  await assert.rejects(redis.mget('a', 'b'), /CROSSSLOT/);
  assert.equal(await redis.set('t', 5, 'EX', 100), 'OK');
  const left = await redis.ttl('t');
  assert.ok(left > 0 && left <= 100);
  assert.equal(await redis.persist('t'), 1);
}

async function pipelines(redis) {
  for (const tag of ['a', 'b', 'c', 'd', 'e']) {
    const pipeline = redis.pipeline();
    for (let number = 0; number < 100; number++) pipeline.incr(`{${tag}}p`);
    assert.deepEqual((await pipeline.exec()).at(-1), [null, 100]);
    const replies = await redis.multi().incr(`{${tag}}m`).incr(`{${tag}}n`).get(`{${tag}}m`).exec();
    assert.deepEqual(replies, [[null, 1], [null, 1], [null, '1']]);
  }
}

// Every node leads something and follows in the rest: where it takes a node for a master it says no READONLY.
async function replicas() {
  const redis = new Cluster(ports.map((port) => ({ host: '127.0.0.1', port })), { scaleReads: 'slave' });
  redis.on('error', () => {});
  for (let round = 0; round < 3; round++) {
    assert.deepEqual(await Promise.all(keys.map((key) => redis.get(key))), keys.map(() => '1'));
  }
  assert.equal(await redis.incr('{r}a'), 1);
  assert.deepEqual(await redis.mget('{t}a', '{t}b'), ['1', '2']);
  redis.disconnect();
}

async function recovery(redis) {
  console.log('kill');
  assert.equal((await input.next()).value, 'killed');
  const until = Date.now() + 60_000;
  for (const key of keys) {
    for (;;) {
      try {
        assert.equal((await redis.call('Q.ADD', key, 1, 'ID', 'after'))[0], 2);
        break;
      } catch (error) {
        if (error instanceof assert.AssertionError || Date.now() > until) throw error;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }
}

(async () => {
  const redis = new Cluster(ports.map((port) => ({ host: '127.0.0.1', port })));
  redis.on('error', () => {});
  await counters(redis);
  await pipelines(redis);
  await replicas();
  await recovery(redis);
  redis.disconnect();
  process.stdin.destroy();
  console.log('fine');
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

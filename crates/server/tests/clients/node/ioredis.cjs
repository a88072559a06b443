// ioredis: node ioredis.cjs <port>. Prints `restart` and waits where the server is to be killed and started again, and
// `fine` at the end.
const assert = require('node:assert/strict');
const readline = require('node:readline');
const Redis = require('ioredis');

const port = Number(process.argv[2]);
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function restart() {
  console.log('restart');
  assert.equal((await input.next()).value, 'restarted');
}

async function counters(redis) {
  assert.equal(await redis.ping(), 'PONG');
  assert.equal(await redis.incr('a'), 1);
  assert.equal(await redis.incrby('a', 9), 10);
  assert.equal(await redis.decrby('a', 3), 7);
  assert.equal(await redis.get('a'), '7');
  assert.equal(await redis.get('nosuch'), null);
  assert.equal(await redis.set('b', 5, 'EX', 100, 'NX'), 'OK');
  assert.equal(await redis.set('b', 5, 'NX'), null);
  assert.equal(await redis.set('b', 6, 'GET'), '5');
  assert.equal(await redis.mset({ c: 1, '{c}d': 2 }), 'OK');
  assert.deepEqual(await redis.mget('c', '{c}d', 'nosuch'), ['1', '2', null]);
  assert.equal(await redis.del('c', '{c}d'), 2);
  assert.deepEqual(await redis.getBuffer('a'), Buffer.from('7'));
  assert.deepEqual(await redis.call('Q.ADD', 'q', 5, 'ID', 'one'), [5, 5, 1, 0]);
  assert.deepEqual(await redis.call('Q.ADD', 'q', 5, 'ID', 'one'), [5, 5, 1, 1]);
}

async function expiry(redis) {
  await redis.set('t', 1);
  assert.equal(await redis.expire('t', 100), 1);
  const left = await redis.ttl('t');
  assert.ok(left > 0 && left <= 100);
  assert.equal(await redis.persist('t'), 1);
  assert.equal(await redis.ttl('t'), -1);
  assert.equal(await redis.pexpireat('t', 1), 1);
  assert.equal(await redis.exists('t'), 0);
}

async function pipelines(redis) {
  const pipeline = redis.pipeline();
  for (let number = 0; number < 1000; number++) pipeline.incr('p');
  assert.deepEqual((await pipeline.exec()).map(([error, value]) => [error, value]).at(-1), [null, 1000]);
  const mixed = await redis.pipeline().incr('p').set('p', 'word').incr('p').exec();
  assert.equal(mixed[0][1], 1001);
  assert.match(mixed[1][0].message, /not an integer/);
  assert.equal(mixed[2][1], 1002);
  await Promise.all(Array.from({ length: 500 }, () => redis.incr('many')));
  assert.equal(await redis.get('many'), '500');
}

async function transactions(redis, other) {
  assert.deepEqual(await redis.multi().incr('m').incr('m').get('m').exec(), [[null, 1], [null, 2], [null, '2']]);
  await assert.rejects(redis.multi().incr('m').call('NOSUCH').exec(), /EXECABORT/);
  assert.equal(await redis.get('m'), '2');
  await redis.set('w', 1);
  await redis.watch('w');
  await other.incr('w');
  assert.equal(await redis.multi().incr('w').exec(), null);
  await redis.watch('w');
  assert.deepEqual(await redis.multi().incr('w').exec(), [[null, 3]]);
}

async function walks(redis) {
  await redis.mset(...Array.from({ length: 500 }, (_, number) => [`user:{u}:${number}`, number]).flat());
  const found = new Set();
  for await (const keys of redis.scanStream({ match: 'user:*', count: 7 })) keys.forEach((key) => found.add(key));
  assert.equal(found.size, 500);
  assert.equal((await redis.keys('*')).length, await redis.dbsize());
}

async function refusals(redis) {
  await assert.rejects(redis.set('word', 'hello'), /not an integer/);
  await assert.rejects(redis.lpush('list', 1), /unknown command/);
  const stranger = new Redis({ port, password: 'secret', lazyConnect: true, retryStrategy: null });
  stranger.on('error', () => {});
  // ioredis warns that no password is needed, and goes on.
  await stranger.connect().catch((error) => assert.match(error.message, /password/));
  stranger.disconnect();
}

(async () => {
  const redis = new Redis({ port, connectionName: 'io' });
  const other = new Redis({ port });
  await redis.flushall();
  await counters(redis);
  await expiry(redis);
  await pipelines(redis);
  await transactions(redis, other);
  await walks(redis);
  await refusals(redis);
  assert.equal(await redis.client('GETNAME'), 'io');
  assert.match(await redis.info('server'), /redis_version:7\./);

  const before = await redis.incr('kept');
  const reconnected = new Promise((resolve) => redis.once('ready', resolve));
  redis.on('error', () => {});
  other.on('error', () => {});
  await restart();
  await reconnected;
  assert.equal(await redis.incr('kept'), before + 1);
  assert.equal(await redis.client('GETNAME'), 'io');
  await Promise.all([redis.quit(), other.quit()]);
  process.stdin.destroy();
  console.log('fine');
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

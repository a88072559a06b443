// node-redis: node node_redis.cjs <port>, in both protocols. Prints `restart` and waits where the server is to be killed and
// started again, and `fine` at the end.
const assert = require('node:assert/strict');
const readline = require('node:readline');
const { createClient, WatchError } = require('redis');

const port = Number(process.argv[2]);
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function restart() {
  console.log('restart');
  assert.equal((await input.next()).value, 'restarted');
}

async function connect(options) {
  const client = createClient({ socket: { host: '127.0.0.1', port }, ...options });
  client.on('error', () => {});
  return client.connect();
}

async function counters(client) {
  assert.equal(await client.ping(), 'PONG');
  assert.equal(await client.incr('a'), 1);
  assert.equal(await client.incrBy('a', 9), 10);
  assert.equal(await client.decrBy('a', 3), 7);
  assert.equal(await client.get('a'), '7');
  assert.equal(await client.get('nosuch'), null);
  assert.equal(await client.set('b', 5, { EX: 100, NX: true }), 'OK');
  assert.equal(await client.set('b', 5, { NX: true }), null);
  assert.equal(await client.set('b', 6, { GET: true }), '5');
  assert.equal(await client.mSet({ c: '1', '{c}d': '2' }), 'OK');
  assert.deepEqual(await client.mGet(['c', '{c}d', 'nosuch']), ['1', '2', null]);
  assert.equal(await client.del(['c', '{c}d']), 2);
  // Ids are remembered longer than what they counted, so each run has its own.
  const id = `request ${await client.clientId()}`;
  assert.deepEqual(await client.sendCommand(['Q.ADD', 'q', '5', 'ID', id]), [5, 5, 1, 0]);
  assert.deepEqual(await client.sendCommand(['Q.ADD', 'q', '5', 'ID', id]), [5, 5, 1, 1]);
}

async function expiry(client) {
  await client.set('t', 1);
  assert.equal(await client.expire('t', 100), 1);
  const left = await client.ttl('t');
  assert.ok(left > 0 && left <= 100);
  assert.equal(await client.persist('t'), 1);
  assert.equal(await client.ttl('t'), -1);
  assert.equal(await client.getEx('t', { type: 'EX', value: 100 }), '1');
  assert.equal(await client.pExpireAt('t', 1), 1);
  assert.equal(await client.exists('t'), 0);
}

async function pipelines(client) {
  const replies = await Promise.all(Array.from({ length: 1000 }, () => client.incr('p')));
  assert.equal(replies.at(-1), 1000);
  assert.deepEqual(await client.multi().incr('p').get('p').execAsPipeline(), [1001, '1001']);
}

async function transactions(client, other) {
  assert.deepEqual(await client.multi().incr('m').incr('m').get('m').exec(), [1, 2, '2']);
  await assert.rejects(client.multi().incr('m').addCommand(['NOSUCH']).exec());
  assert.equal(await client.get('m'), '2');
  await client.set('w', 1);
  await client.watch('w');
  await other.incr('w');
  await assert.rejects(client.multi().incr('w').exec(), WatchError);
  await client.watch('w');
  assert.deepEqual(await client.multi().incr('w').exec(), [3]);
}

async function walks(client) {
  await client.mSet(Array.from({ length: 500 }, (_, number) => [`user:{u}:${number}`, `${number}`]));
  const found = new Set();
  for await (const keys of client.scanIterator({ MATCH: 'user:*', COUNT: 7 })) {
    [keys].flat().forEach((key) => found.add(key));
  }
  assert.equal(found.size, 500);
  assert.equal((await client.keys('*')).length, await client.dbSize());
}

async function refusals(client) {
  await assert.rejects(client.set('word', 'hello'), /not an integer/);
  await assert.rejects(client.lPush('list', '1'), /unknown command/);
  const stranger = createClient({
    socket: { host: '127.0.0.1', port, reconnectStrategy: false },
    username: 'nobody',
    password: 'secret',
  });
  stranger.on('error', () => {});
  await assert.rejects(stranger.connect(), /WRONGPASS/);
}

async function everything(RESP) {
  const client = await connect({ RESP, name: 'nr' });
  const other = await connect({ RESP });
  await client.flushAll();
  await counters(client);
  await expiry(client);
  await pipelines(client);
  await transactions(client, other);
  await walks(client);
  await refusals(client);
  assert.equal(await client.clientGetName(), 'nr');
  assert.match(await client.info('server'), /redis_version:7\./);
  assert.equal((await client.configGet('maxmemory')).maxmemory, '0');
  assert.equal((await client.clientInfo()).resp ?? RESP, RESP);
  assert.ok((await client.clientList()).some((each) => each.name === 'nr'));

  const before = await client.incr('kept');
  const reconnected = new Promise((resolve) => client.once('ready', resolve));
  await restart();
  await reconnected;
  assert.equal(await client.incr('kept'), before + 1);
  assert.equal(await client.clientGetName(), 'nr');
  await Promise.all([client.close(), other.close()]);
}

(async () => {
  await everything(2);
  await everything(3);
  process.stdin.destroy();
  console.log('fine');
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

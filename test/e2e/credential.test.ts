// The credential that n8n has for Redis anyway: all its fields count, and what goes wrong with it is said clearly.

import Redis from 'ioredis';
import { freePort } from '../../scripts/lib/ports';
import { startRedis } from '../../scripts/lib/redis';
import type { RedisServer } from '../../scripts/lib/redis';
import { Flow, OUTPUT } from './support/flow';
import { goLive, redisCredential, sharedN8n, unique } from './support/n8n';
import type { Run } from './support/n8n';

const n8n = sharedN8n();
const PASSWORD = 'correct-horse-battery';
const DATABASE = 5;
let server: RedisServer;
let admin: Redis;

beforeAll(async () => {
  server = await startRedis({ args: ['--requirepass', 'admin-only', '--databases', '16'] });
  admin = new Redis({ host: server.host, port: server.port, password: 'admin-only', db: DATABASE });
  await admin.call('ACL', 'SETUSER', 'locker', 'on', `>${PASSWORD}`, '~*', '&*', '+@all', '-@dangerous', '+info');
});
afterAll(async () => {
  admin.disconnect();
  await server.stop();
});

/** Runs Acquire → Release once under a credential, and gives the run. */
async function tryWith(
  data: Record<string, unknown>,
  key: string,
  settings: Record<string, unknown> = {},
): Promise<Run> {
  const path = unique('credential');
  const flow = new Flow(
    unique('Credential'),
    await redisCredential(n8n, { host: server.host, port: server.port, ...data }),
  );
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key, ttl: 60 }, settings),
    flow.noOp('Section'),
    flow.lock('Release', { operation: 'release' }),
  );
  const live = await goLive(n8n, flow);
  await live.call(path);
  const [run] = await live.finished(1);
  return run;
}

test('user, password and database are honoured', async () => {
  const key = unique('acl:lock:record');
  const path = unique('credential');
  const data = { host: server.host, port: server.port, user: 'locker', password: PASSWORD, database: DATABASE };
  const flow = new Flow(unique('Credential'), await redisCredential(n8n, data));
  flow.chain(flow.webhook(path), flow.lock('Acquire', { operation: 'acquire', key, ttl: 60 }));
  const live = await goLive(n8n, flow);
  await live.call(path);
  const [run] = await live.finished(1);

  expect(run.lock('Acquire')).toMatchObject({ acquired: true, key });
  const other = new Redis({ host: server.host, port: server.port, password: 'admin-only', db: 0 });
  try {
    expect(await other.exists(key)).toBe(0);
  } finally {
    other.disconnect();
  }
  // In that database, whether or not the lock is given back when the execution ends.
  const keys = await admin.keys(`*${key}*`);
  expect(keys.length).toBeGreaterThan(0);
});

test('a wrong password ends the run with a message that says where, and never the password', async () => {
  const run = await tryWith({ user: 'locker', password: 'wrong-horse', database: DATABASE }, unique('acl:lock:record'));
  expect(run.status).toBe('error');
  expect(run.times('Section')).toBe(0);
  expect(run.error?.message).toContain(`${server.host}:${server.port}`);
  expect(`${run.error?.message} ${run.error?.description ?? ''}`).toMatch(/password|user/i);
  expect(JSON.stringify(run.execution.data)).not.toContain('wrong-horse');
});

test('an unreachable Redis ends the run in time with a message that says where', async () => {
  const port = await freePort();
  const run = await tryWith({ port }, unique('acl:lock:record'));
  expect(run.status).toBe('error');
  expect(run.times('Section')).toBe(0);
  expect(run.error?.message).toContain(`${server.host}:${port}`);
  expect(run.tookMs).toBeLessThan(12_000);
});

test.each([['continueErrorOutput'], ['continueRegularOutput']])(
  'an unreachable Redis under %s puts nothing on Acquired',
  async (onError) => {
    const port = await freePort();
    const run = await tryWith({ port }, unique('acl:lock:record'), { onError });
    expect(run.status).toBe('success');
    expect(run.items('Acquire', OUTPUT.acquired)).toEqual([]);
    expect(run.times('Section')).toBe(0);
    const output = onError === 'continueErrorOutput' ? 3 : OUTPUT.busy;
    expect(run.items('Acquire', output)).toHaveLength(1);
    expect(JSON.stringify(run.items('Acquire', output))).toContain(`${server.host}:${port}`);
  },
);

test('a user without the needed rights is told which command is missing', async () => {
  await admin.call('ACL', 'SETUSER', 'reader', 'on', `>${PASSWORD}`, '~*', '&*', '+@read', '+@connection');
  const run = await tryWith({ user: 'reader', password: PASSWORD, database: DATABASE }, unique('acl:lock:record'));
  expect(run.status).toBe('error');
  expect(run.times('Section')).toBe(0);
  expect(`${run.error?.message} ${run.error?.description ?? ''}`).toMatch(/evalsha|eval|script|time/i);
});

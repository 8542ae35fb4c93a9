import type { Locks } from '../../engine';
import { newKey, take, useBed, type Bed } from './support/bed';
import { timed, until } from './support/until';

/** What the scripts and the engine use. */
const NEEDED = [
  'eval', 'time', 'get', 'set', 'del', 'pttl', 'type', 'pexpire', 'pexpireat', 'hset', 'hget', 'hgetall', 'hmget', 'hdel', 'hlen',
  'zadd', 'zcard', 'zrange', 'zrem', 'zscore',
];

let users = 0;
/** An engine of a new user who has these rights only. */
async function locksOf(bed: Bed, rules: string[]): Promise<Locks> {
  const name = `user${++users}`;
  await bed.redis.acl('SETUSER', name, 'on', '>pw', 'resetkeys', 'resetchannels', 'nocommands', ...rules);
  return bed.locks({ commandTimeoutMs: 2000 }, { options: { host: bed.server.host, port: bed.server.port, username: name, password: 'pw' } });
}

describe('a user of Redis with few rights', () => {
  const bed = useBed();
  const as = (...rules: string[]) => locksOf(bed, rules);
  const exactly = NEEDED.map((name) => `+${name}`);

  it('can do everything with exactly the commands, keys and channels that are documented', async () => {
    const rules = ['~w4:*', '~{w4:*', '~rl:execution:*', '&rl:wake:*', ...exactly, '+evalsha', '+publish', '+subscribe', '+scan'];
    const locks = await as(...rules);
    const key = newKey();
    const owner = { instanceId: 'i', executionId: 'permitted' };
    const lock = await take(locks, key, { owner, renewEveryMs: 1000 });
    const waiting = locks.acquire(key, { ttlMs: 1000, waitMs: 10_000, owner });
    await until(async () => (await locks.status(key)).queue === 1);
    expect((await lock.heartbeat()).outcome).toBe('alive');
    expect(await locks.acquire(key, { ttlMs: 1000, waitMs: 20 })).toMatchObject({ outcome: 'timedOut' });
    expect((await lock.release()).outcome).toBe('released');
    expect((await waiting).outcome).toBe('acquired');
    expect(await locks.releaseExecution(owner)).toMatchObject([{ key, outcome: 'released' }]);
    for await (const state of locks.list({ match: 'w4:*' })) expect(state.key).not.toBe(key);
  });

  it.each(NEEDED)('is told that it may not run %s, and leaves nothing half made', async (name) => {
    await bed.redis.script('FLUSH');
    await (await take(bed.locks(), newKey('warm'))).release();
    const locks = await as('~*', '&*', '+@all', `-${name}`);
    const key = newKey();
    const before = (await bed.redis.keys('*')).sort();
    const { ms, error } = await timed(locks.acquire(key, { ttlMs: 30_000, owner: { instanceId: 'i', executionId: name } }));
    expect(error).toMatchObject({ name: 'RedisLockError', code: 'permission', command: name });
    expect(error!.message).toContain(name.toUpperCase());
    expect(error!.message).toContain(`+${name}`);
    expect(ms).toBeLessThan(1500);
    expect(await bed.keysWithoutTtl()).toEqual([]);
    expect((await bed.redis.keys('*')).filter((found) => !found.includes(':rl:probe')).sort()).toEqual(before.filter((found) => !found.includes(':rl:probe')));
  });

  it('is told when it may not load a script', async () => {
    const locks = await as('~*', '&*', '+@all', '-eval');
    await bed.redis.script('FLUSH');
    await expect(locks.acquire(newKey(), { ttlMs: 1000 })).rejects.toMatchObject({ code: 'permission', command: 'eval' });
  });

  it.each([
    ['the key itself', ['~{w4:*', '~rl:*']],
    ['its companions', ['~w4:*', '~rl:*']],
    ['the index', ['~w4:*', '~{w4:*']],
  ])('is told which patterns to allow when it may not touch %s', async (_, patterns) => {
    const locks = await as(...patterns, '&*', '+@all');
    const key = newKey();
    const { error } = await timed(locks.acquire(key, { ttlMs: 1000, owner: { instanceId: 'i', executionId: 'keys' } }));
    expect(error).toMatchObject({ code: 'permission' });
    for (const pattern of ['~w4ingest:*', '~{w4ingest:*', '~rl:execution:*']) expect(error!.message).toContain(pattern);
    expect(await bed.redis.keys(`*${key}*`)).toEqual([]);
  });
});

describe('a user of Redis without channels', () => {
  const bed = useBed();
  const silent = {
    'may not subscribe or publish': ['+@all', '-subscribe', '-publish', '&*'],
    'has no channels': ['+@all'],
    'may subscribe but not publish': ['+@all', '-publish', '&*'],
  };

  // All three at once, since each of them takes its time.
  it(`waits by looking, when he ${Object.keys(silent).join(', or ')}`, () => Promise.all(Object.values(silent).map(handOver)), 20_000);

  async function handOver(rules: string[]): Promise<void> {
    const [holding, waiting] = [await locksOf(bed, ['~*', ...rules]), await locksOf(bed, ['~*', ...rules])];
    const key = newKey();
    const lock = await take(holding, key, { ttlMs: 60_000 });
    const first = waiting.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await until(async () => (await holding.status(key)).queue === 1);
    const second = waiting.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await until(async () => (await holding.status(key)).queue === 2);
    const started = performance.now();
    expect((await lock.release()).outcome).toBe('released');
    const won = await first;
    if (won.outcome !== 'acquired') throw new Error(won.outcome);
    expect(performance.now() - started).toBeLessThan(5500);
    expect(await holding.status(key)).toMatchObject({ queue: 1, holders: [{ fencingToken: won.lock.fencingToken }] });
    await won.lock.release();
    expect((await second).outcome).toBe('acquired');
  }
});

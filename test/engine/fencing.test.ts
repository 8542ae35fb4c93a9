import { newKey, take, useBed } from './support/bed';
import { setFence } from './support/state';

describe('fencing tokens', () => {
  const bed = useBed();

  it('M5: grow with every grant, and the key holds the newest, in 16 digits', async () => {
    const locks = bed.locks();
    const key = newKey();
    let last = 0;
    for (let i = 0; i < 50; i++) {
      const lock = await take(locks, key);
      expect(lock.fencingToken).toBeGreaterThan(last);
      expect(Number.isSafeInteger(lock.fencingToken)).toBe(true);
      expect(await bed.redis.get(key)).toBe(String(lock.fencingToken));
      expect(String(lock.fencingToken)).toHaveLength(16);
      last = lock.fencingToken;
      await lock.release();
    }
  });

  it('grow although Redis lost its data', async () => {
    const locks = bed.locks();
    const key = newKey();
    const before = await take(locks, key);
    await bed.redis.flushall();
    const after = await take(locks, key);
    expect(after.fencingToken).toBeGreaterThan(before.fencingToken);
  });

  it('grow although the clock of the server was set back', async () => {
    const locks = bed.locks();
    const key = newKey();
    await (await take(locks, key)).release();
    const ahead = (Date.now() + 3_600_000) * 1000;
    await setFence(bed.redis, key, ahead);

    const first = await take(locks, key);
    expect(first.fencingToken).toBe(ahead + 1);
    expect(await bed.redis.get(key)).toBe(String(ahead + 1));
    expect((await first.heartbeat()).outcome).toBe('alive');
    await first.release();
    expect((await take(locks, key)).fencingToken).toBe(ahead + 2);
  });

  it('grow from hand to hand along the line', async () => {
    const locks = bed.locks();
    const key = newKey();
    const first = await take(locks, key);
    const waits = [1, 2, 3].map(() => locks.acquire(key, { ttlMs: 30_000, waitMs: 10_000 }));
    const tokens = [first.fencingToken];
    let lock = first;
    for (const wait of waits) {
      await lock.release();
      const result = await wait;
      if (result.outcome !== 'acquired') throw new Error(result.outcome);
      lock = result.lock;
      tokens.push(lock.fencingToken);
    }
    expect(tokens).toEqual([...tokens].sort((a, b) => a - b));
    expect(new Set(tokens).size).toBe(4);
  });
});

describe('a holder of before Redis lost its data', () => {
  const bed = useBed();

  it('is told so by heartbeat and release', async () => {
    const lock = await take(bed.locks(), newKey());
    await bed.redis.flushall();
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'stateLost' });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'stateLost' });
  });

  it('is not told that it gave back what another one holds or held since', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await bed.redis.flushall();
    const next = await take(locks, key, { owner: { executionId: '2' } });

    const by = { fencingToken: next.fencingToken, owner: { executionId: '2' } };
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'unknown', by });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'unknown', by });
    await next.release();
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'unknown' });
    expect(await next.release()).toEqual({ outcome: 'alreadyReleased' });
  });
});

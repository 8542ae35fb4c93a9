import type { AcquireOptions, Lock, Locks } from '../../engine';
import { newKey, take, useBed, wait, won } from './support/bed';
import { commandsDuring } from './support/commands';
import { expire, inLine } from './support/state';
import { until } from './support/until';

const shared: Partial<AcquireOptions> = { mode: 'shared' };

describe('a lock that is shared or exclusive', () => {
  const bed = useBed();
  const queueIs = (locks: Locks, key: string, length: number) => until(async () => (await locks.status(key)).queue === length);

  it('has any number of shared holders, or one exclusive one', async () => {
    const locks = bed.locks();
    const key = newKey();
    const readers = await Promise.all(Array.from({ length: 150 }, () => take(locks, key, shared)));
    expect(await locks.status(key)).toMatchObject({ holderCount: 150, holders: { length: 100, 0: { mode: 'shared', limit: 1_000_000 } } });
    expect(await locks.acquire(key, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', reason: 'held' });
    await Promise.all(readers.map((lock) => lock.release()));
    const writer = await take(locks, key);
    expect(await locks.acquire(key, { ttlMs: 1000, ...shared })).toMatchObject({ outcome: 'busy', reason: 'held', holders: [{ mode: 'exclusive' }] });
    await writer.release();
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('is strictly in turn: a writer that waits holds back later readers, and readers in a row enter together', async () => {
    const [locks, others] = [bed.locks(), bed.locks()];
    const key = newKey();
    const reader = await take(locks, key, shared);
    const writer = wait(locks, key);
    await queueIs(locks, key, 1);
    const later = Array.from({ length: 5 }, (_, i) => wait(i % 2 ? locks : others, key, shared));
    await queueIs(locks, key, 6);
    const last = wait(others, key);
    await queueIs(locks, key, 7);
    const after = wait(locks, key, shared);
    await queueIs(locks, key, 8);
    expect(await locks.acquire(key, { ttlMs: 1000, ...shared })).toMatchObject({ outcome: 'busy' });

    await reader.release();
    const wrote = await won(writer);
    expect((await locks.status(key)).holderCount).toBe(1);
    await wrote.release();
    const read = await Promise.all(later.map((each) => won(each)));
    expect(await locks.status(key)).toMatchObject({ holderCount: 5, queue: 2 });
    for (const lock of read) await lock.release();
    const wroteLast = await won(last);
    expect(await locks.status(key)).toMatchObject({ holderCount: 1, queue: 1 });
    await wroteLast.release();
    await (await won(after)).release();
    const tokens = read.map((lock) => lock.fencingToken);
    expect(Math.min(...tokens)).toBeGreaterThan(wrote.fencingToken);
    expect(Math.max(...tokens)).toBeLessThan(wroteLast.fencingToken);
  });

  it('lets in more readers than one script serves', async () => {
    const locks = bed.locks();
    const key = newKey();
    const writer = await take(locks, key);
    const readers = Array.from({ length: 450 }, () => wait(locks, key, shared));
    await inLine(bed.redis, key, 450);
    const commands = await commandsDuring(bed.redis, async () => {
      await writer.release();
      await Promise.all(readers.map((each) => won(each)));
    });
    // Two hundred are told, and that there is room for more; the others are served as the process asks: twice.
    expect(commands.publish).toBe(201);
    expect(commands.evalsha! + (commands.eval ?? 0)).toBeLessThanOrEqual(1 + 450 + 2 + 250);
    expect(await locks.status(key)).toMatchObject({ holderCount: 450, queue: 0 });
  });

  it('waits for the last reader, and for the TTL of one that died', async () => {
    const locks = bed.locks();
    const key = newKey();
    const first = await take(locks, key, shared);
    const dead = await take(locks, key, shared);
    const writer = wait(locks, key);
    await queueIs(locks, key, 1);
    await first.release();
    expect((await locks.status(key)).holderCount).toBe(1);
    await expire(bed.redis, key, dead.lockId);
    await won(writer);
    expect(await dead.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired' });
  });

  it('keeps no more than a few readers that ran out beside the living ones', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key, shared);
    const crashed: Lock[] = [];
    for (let i = 0; i < 80; i++) {
      const lock = await take(locks, key, shared);
      await expire(bed.redis, key, lock.lockId, { keepKey: true });
      crashed.push(lock);
    }
    const fields = (await bed.redis.hkeys(`{${key}}:rl:lock`)).filter((field) => field.startsWith('@'));
    expect(fields.length).toBeLessThanOrEqual(66);
    expect(await crashed.at(-1)!.heartbeat()).toMatchObject({ outcome: 'alive', revived: true });
  });

  it('is not changed from one to the other while it is held', async () => {
    const locks = bed.locks();
    const [a, b] = [newKey(), newKey()];
    const reader = await take(locks, a, shared);
    const writer = await take(locks, b);
    await expect(locks.acquire(a, { ttlMs: 1000, lockId: reader.lockId })).rejects.toThrow('mode: can\'t be changed while the lock');
    await expect(locks.acquire(b, { ttlMs: 1000, lockId: writer.lockId, ...shared })).rejects.toThrow('mode: can\'t be changed while the lock');
    expect([(await reader.heartbeat()).outcome, (await writer.heartbeat()).outcome]).toEqual(['alive', 'alive']);
  });

  it('is taken over like any other, where that leaves room', async () => {
    const locks = bed.locks();
    const key = newKey();
    const one = await take(locks, key, shared);
    const steal = { if: { fencingToken: one.fencingToken }, ttlMs: 30_000 };
    const two = await take(locks, key, shared);
    expect(await locks.steal(key, steal)).toMatchObject({ outcome: 'notStolen', reason: 'otherLimit' });
    await two.release();
    expect((await locks.steal(key, steal)).outcome).toBe('stolen');
    expect(await one.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'stolen' });
  });

  it.each([
    [{ mode: 'write' as 'shared' }, 'mode: must be \'exclusive\' or \'shared\', not "write"'],
    [{ mode: 'shared' as const, limit: 2 }, 'limit: has no meaning for a shared lock'],
  ])('refuses %j', async (options, problem) => {
    await expect(bed.locks().acquire(newKey(), { ttlMs: 1000, ...options })).rejects.toThrow(problem);
  });
});

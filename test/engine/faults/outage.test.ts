import { newKey, take, useBed, wait, won } from '../support/bed';
import { timed, until } from '../support/until';
import { inLine } from '../support/state';

/** A Redis that is away for a while, or there and silent. */
describe('an outage', () => {
  const bed = useBed(['--appendonly', 'yes', '--appendfsync', 'always']);

  it.each(['a connection of our own', 'a client that was handed in'])('F17: ends for those who wait, on %s', async (whose) => {
    const key = newKey();
    const source = whose.startsWith('a client') ? { redis: bed.client() } : { url: bed.server.url };
    const [locks, others] = [bed.locks({ commandTimeoutMs: 600 }, source), bed.locks()];
    const holder = await take(others, key, { ttlMs: 120_000 });
    const waiting = wait(locks, key, { waitMs: 60_000 });
    await inLine(bed.redis, key, 1);

    await bed.server.kill();
    // Attempts to connect that fail, and calls that are given up, must not be the end of all attempts.
    for (let i = 0; i < 4; i++) await expect(locks.status(key)).rejects.toMatchObject({ code: 'unavailable' });
    await bed.comeBack();
    expect((await holder.heartbeat()).outcome).toBe('alive');
    expect((await holder.release()).outcome).toBe('released');
    const { ms, value } = await timed(waiting);
    const lock = await won(value!);
    expect(ms).toBeLessThan(10_000);

    // And messages come again.
    expect((await lock.release()).outcome).toBe('released');
    const next = newKey();
    const nextHolder = await take(others, next);
    const nextWaiting = wait(locks, next);
    await inLine(bed.redis, next, 1);
    await nextHolder.release();
    const again = await timed(nextWaiting);
    expect(again.value!.outcome).toBe('acquired');
    expect(again.ms).toBeLessThan(3000);
  }, 40_000);

  it('F21: is over for every call by its limit, when Redis hangs', async () => {
    const limitMs = 800;
    const locks = bed.locks({ commandTimeoutMs: limitMs });
    const held = await take(locks, newKey());
    const free = newKey();
    await (await take(locks, free)).release();
    process.kill(bed.server.pid, 'SIGSTOP');
    const calls = await Promise.all(
      [
        locks.acquire(free, { ttlMs: 30_000 }),
        locks.acquire(free, { ttlMs: 30_000, waitMs: 1000 }),
        locks.steal(held.key, { if: 'any', ttlMs: 30_000 }),
        locks.status(held.key),
        held.heartbeat(),
        held.release(),
      ].map((call) => timed<unknown>(call)),
    );
    process.kill(bed.server.pid, 'SIGCONT');
    for (const { ms, error } of calls) {
      expect(error).toMatchObject({ name: 'RedisLockError', code: 'unavailable' });
      expect(ms).toBeLessThan(limitMs + 2000);
    }
    // What was given up grants nothing later.
    await until(async () => (await locks.status(free).catch(() => undefined))?.state === 'free');
    expect((await bed.locks().acquire(free, { ttlMs: 1000 })).outcome).toBe('acquired');
  }, 20_000);
});

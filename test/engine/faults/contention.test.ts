import type { Lock } from '../../../engine';
import { newKey, take, useBed, wait, won } from '../support/bed';
import { inLine } from '../support/state';

/** Many on one lock, many locks, and many hand-overs: nobody waits for long while there is nothing to wait for. */
describe('under contention', () => {
  const bed = useBed();
  const engines = (count: number) => Array.from({ length: count }, () => bed.locks());

  it('F7: 500 waiters of one lock all have their turn, one at a time, without a standstill', async () => {
    const key = newKey();
    const five = engines(5);
    const holder = await take(five[0]!, key, { ttlMs: 60_000 });
    let inside = 0;
    const entered: number[] = [];
    const waits = Array.from({ length: 500 }, async (_, i) => {
      const lock = await won(wait(five[i % 5]!, key, { waitMs: 60_000 }));
      entered.push(performance.now());
      expect(++inside).toBe(1);
      await new Promise((resolve) => setImmediate(resolve));
      inside -= 1;
      await lock.release();
    });
    await inLine(bed.redis, key, 500);
    const released = performance.now();
    await holder.release();
    await Promise.all(waits);
    const gaps = entered.map((at, i) => at - (entered[i - 1] ?? released));
    expect(gaps).toHaveLength(500);
    expect(Math.max(...gaps)).toBeLessThan(5000);
    expect(await five[0]!.status(key)).toMatchObject({ state: 'free', queue: 0 });
  }, 60_000);

  it('F9: a release gives the lock to the next at once, and leaves it free where nobody waits', async () => {
    const key = newKey();
    const [a, b] = engines(2) as [ReturnType<typeof bed.locks>, ReturnType<typeof bed.locks>];
    let lock: Lock = await take(a, key);
    const tookMs: number[] = [];
    for (let i = 0; i < 200; i++) {
      const waiting = wait(i % 2 ? a : b, key);
      await inLine(bed.redis, key, 1);
      const started = performance.now();
      await lock.release();
      lock = await won(waiting);
      tookMs.push(performance.now() - started);
    }
    // Without being told the next one would look after some seconds.
    expect(Math.max(...tookMs)).toBeLessThan(2000);
    await lock.release();
    for (let i = 0; i < 100; i++) await (await take(i % 2 ? a : b, key)).release();
  }, 60_000);

  it('F10: nobody starves at one of hundreds of semaphores that are all handed on at once', async () => {
    const [holding, ...waiting] = engines(3);
    const keys = Array.from({ length: 300 }, () => newKey('semaphore'));
    const held = await Promise.all(keys.flatMap((key) => [0, 1].map(() => take(holding!, key, { limit: 2 }))));
    const waits = keys.flatMap((key) => waiting.flatMap((locks) => [wait(locks, key, { limit: 2 }), wait(locks, key, { limit: 2 })]));
    for (const key of keys) await inLine(bed.redis, key, 4);
    const released = performance.now();
    await Promise.all([
      ...held.map((lock) => lock.release()),
      ...waits.map(async (result) => {
        const lock = await won(result);
        expect((await lock.release()).outcome).toBe('released');
      }),
    ]);
    // Every one of the 1200, not on average only.
    expect(performance.now() - released).toBeLessThan(5000);
  }, 60_000);
});

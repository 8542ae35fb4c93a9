import { newKey, take, useBed, wait, won } from '../support/bed';
import { startChild } from '../support/child';
import { timed } from '../support/until';
import { inLine } from '../support/state';

const MINUTE = 60_000;

/** Waiters that outlast something: limits inside, predecessors who leave, a holder that dies. */
describe('the waiting line', () => {
  const bed = useBed();
  const namesOf = (key: string) => bed.redis.keys(`*${key}*`);
  const ttlsOf = (names: string[]) => Promise.all(names.map((name) => bed.redis.pttl(name)));

  it('F3: serves one first who waited longer than any other time limit that there is', async () => {
    const key = newKey();
    const [holding, patient, hasty, late] = Array.from({ length: 4 }, () => bed.locks({ commandTimeoutMs: 1000, fencingRetentionMs: 1 }));
    const holder = await take(holding!, key, { ttlMs: 2500 });
    const first = wait(patient!, key, { ttlMs: 2500, waitMs: MINUTE });
    await inLine(bed.redis, key, 1);
    // Longer than the leases, the command limit, the time to claim a grant (3 s) and the time between two looks (5 s).
    for (const started = performance.now(); performance.now() - started < 7000; ) {
      expect((await wait(hasty!, key, { waitMs: 200 })).outcome).toBe('timedOut');
      expect((await holder.heartbeat()).outcome).toBe('alive');
    }
    const last = wait(late!, key);
    await inLine(bed.redis, key, 2);
    await holder.release();
    const lock = await won(first);
    expect((await holding!.status(key)).queue).toBe(1);
    await lock.release();
    await won(last);
  }, 25_000);

  it('F3: is kept in Redis for as long as the longest wait in it, whoever joins for a shorter one', async () => {
    const key = newKey();
    const locks = bed.locks();
    await take(locks, key);
    void wait(locks, key, { waitMs: 60 * MINUTE });
    await inLine(bed.redis, key, 1);
    void wait(bed.locks(), key, { waitMs: MINUTE });
    await inLine(bed.redis, key, 2);
    expect((await wait(bed.locks(), key, { waitMs: 50 })).outcome).toBe('timedOut');
    // All but the key itself, which ends with the lease.
    const names = (await namesOf(key)).filter((name) => name !== key);
    expect(names.length).toBeGreaterThan(0);
    expect(Math.min(...(await ttlsOf(names)))).toBeGreaterThan(59 * MINUTE);
  });

  it('F3: has still a place for a process that was frozen for longer than it has to claim a grant', async () => {
    const key = newKey();
    const locks = bed.locks();
    const holder = await take(locks, key, { ttlMs: MINUTE });
    const frozen = await startChild(bed.server.url);
    const first = frozen.acquire('first', key, { ttlMs: 30_000, waitMs: MINUTE });
    await inLine(bed.redis, key, 1);
    const [second, third] = [wait(locks, key), wait(bed.locks(), key)];
    await inLine(bed.redis, key, 3);

    frozen.signal('SIGSTOP');
    await holder.release();
    // It was granted to the frozen one first, and that ran out.
    const next = await won(second);
    frozen.signal('SIGCONT');
    await next.release();
    const order = await Promise.all([
      first.then(async ({ outcome }) => [outcome, (await frozen.release('first')).outcome]),
      won(third).then(async (lock) => ['acquired', (await lock.release()).outcome]),
    ]);
    expect(order).toEqual([['acquired', 'released'], ['acquired', 'released']]);
    expect(await locks.status(key)).toMatchObject({ state: 'free', queue: 0 });
  }, 40_000);

  it('F4: is served by those in it alone when the holder was killed', async () => {
    const key = newKey();
    const engines = [bed.locks(), bed.locks()];
    const dead = await startChild(bed.server.url);
    const ttlMs = 4000;
    expect((await dead.acquire('dead', key, { ttlMs })).outcome).toBe('acquired');
    const order: number[] = [];
    const waits = [0, 1, 2, 3].map(async (place) => {
      await inLine(bed.redis, key, place);
      const lock = await won(wait(engines[place % 2]!, key));
      order.push(place);
      await lock.release();
    });
    await inLine(bed.redis, key, 4);
    dead.signal('SIGKILL');
    const { ms, error } = await timed(Promise.all(waits));
    expect(error).toBeUndefined();
    expect(ms).toBeLessThan(ttlMs + 5000);
    expect(order).toEqual([0, 1, 2, 3]);
    expect(await engines[0]!.status(key)).toMatchObject({ state: 'free', queue: 0 });
  }, 25_000);

  it('F6: adds nothing up: who is left has its own deadline, however many left before it', async () => {
    const key = newKey();
    const locks = bed.locks();
    await take(locks, key);
    const before = await namesOf(key);
    const stop = new AbortController();
    const outcomeOf = (waitMs: number, signal?: AbortSignal) =>
      wait(locks, key, { waitMs, ...(signal && { signal }) }).then(({ outcome }) => outcome, (error: Error) => error.message);
    const [long, short]: Array<Array<Promise<string>>> = [[], []];
    for (let i = 0; i < 10; i++) {
      long!.push(outcomeOf(10 * MINUTE, stop.signal));
      short!.push(outcomeOf(1000));
    }
    // Those in the middle go.
    expect(await Promise.all(short!)).toEqual(Array(10).fill('timedOut'));
    expect((await locks.status(key)).queue).toBe(10);
    const ttls = await ttlsOf((await namesOf(key)).filter((name) => !before.includes(name)));
    expect(Math.min(...ttls)).toBeGreaterThan(9 * MINUTE);
    expect(Math.max(...ttls)).toBeLessThan(12 * MINUTE);

    stop.abort(new Error('gone'));
    expect(await Promise.all(long!)).toEqual(Array(10).fill('gone'));
    expect((await locks.status(key)).queue).toBe(0);
    expect((await namesOf(key)).sort()).toEqual([...before].sort());
  }, 15_000);

  it('F11: lets one in who needs both of two permits, when the second is given back', async () => {
    const key = newKey();
    const [locks, alone] = [bed.locks(), bed.locks()];
    const [a, b] = [await take(locks, key, { limit: 2 }), await take(locks, key, { limit: 2 })];
    const waiting = wait(alone, key, { limit: 1 });
    await inLine(bed.redis, key, 1);
    await a.release();
    expect(await locks.status(key)).toMatchObject({ queue: 1, holders: [{ fencingToken: b.fencingToken }] });
    await b.release();
    const { ms, value } = await timed(waiting);
    expect(value!.outcome).toBe('acquired');
    expect(ms).toBeLessThan(3000);
  }, 25_000);

  it('F11: lets all of one process in for whom one release makes room', async () => {
    const key = newKey();
    const [locks, many] = [bed.locks(), bed.locks()];
    const holder = await take(locks, key);
    const waits = [1, 2, 3].map(() => wait(many, key, { limit: 3 }));
    await inLine(bed.redis, key, 3);
    await holder.release();
    const { ms, error } = await timed(Promise.all(waits.map(won)));
    expect(error).toBeUndefined();
    expect(ms).toBeLessThan(3000);
  }, 25_000);
});

import { newKey, take, useBed, wait } from './support/bed';
import { commandsDuring } from './support/commands';
import { expire, inLine } from './support/state';
import { until } from './support/until';

describe('the waiting line', () => {
  const bed = useBed();
  it('is served in order of arrival, across processes', async () => {
    const engines = [bed.locks(), bed.locks(), bed.locks()];
    const key = newKey();
    const first = await take(bed.locks(), key);
    const order: number[] = [];
    const waits = [];
    for (let i = 0; i < 12; i++) {
      const place = i;
      waits.push(
        wait(engines[i % 3]!, key).then(async (result) => {
          if (result.outcome !== 'acquired') throw new Error(result.outcome);
          order.push(place);
          await result.lock.release();
        }),
      );
      await inLine(bed.redis, key, i + 1);
    }
    await first.release();
    await Promise.all(waits);
    expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  });

  it('F12: does not let newcomers barge in, not even at the moment of the release', async () => {
    const [locks, patient, others] = [bed.locks(), bed.locks(), bed.locks()];
    const key = newKey();
    for (let round = 0; round < 20; round++) {
      const holder = await take(locks, key);
      const waiting = wait(patient, key);
      await inLine(bed.redis, key, 1);
      const [, ...newcomers] = await Promise.all([
        holder.release(),
        ...Array.from({ length: 5 }, () => locks.acquire(key, { ttlMs: 1000 })),
        ...Array.from({ length: 5 }, () => others.acquire(key, { ttlMs: 1000 })),
      ]);
      expect(newcomers.map(({ outcome }) => outcome)).toEqual(Array(10).fill('busy'));
      const won = await waiting;
      if (won.outcome !== 'acquired') throw new Error(won.outcome);
      await won.lock.release();
    }
  });

  it('does not let a newcomer with a larger limit pass one who needs the room', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key, { limit: 2 });
    const alone = wait(locks, key, { limit: 1 });
    await inLine(bed.redis, key, 1);
    expect((await locks.acquire(key, { ttlMs: 1000, limit: 2 })).outcome).toBe('busy');
    await holder.release();
    expect((await alone).outcome).toBe('acquired');
  });

  it('gives a place in line to its own id, also when that asks without waiting', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    void wait(locks, key, { lockId: 'the-same' });
    await inLine(bed.redis, key, 1);
    await expire(bed.redis, key, holder.lockId);

    const asked = await bed.locks().acquire(key, { ttlMs: 30_000, lockId: 'the-same' });

    expect(asked.outcome).toBe('acquired');
  });

  it('F16: costs next to nothing while it stands, and one message wakes the next', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(bed.locks(), key, { ttlMs: 60_000 });
    const waits = Array.from({ length: 50 }, () => wait(locks, key));
    await inLine(bed.redis, key, 50);

    const parked = await commandsDuring(bed.redis, () => new Promise((resolve) => setTimeout(resolve, 1500)));
    expect(parked.evalsha ?? 0).toBeLessThanOrEqual(1);

    let started = 0;
    const handOff = await commandsDuring(bed.redis, async () => {
      started = performance.now();
      await holder.release();
      const won = await waits[0]!;
      if (won.outcome !== 'acquired') throw new Error(won.outcome);
    });
    expect(performance.now() - started).toBeLessThan(500);
    expect(handOff.publish).toBe(1);
    expect((handOff.evalsha ?? 0) + (handOff.eval ?? 0)).toBeLessThanOrEqual(2);
  });

  it('ends at the deadline, not before and hardly later', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { owner: { executionId: 'in the way' } });
    const started = performance.now();
    const result = await wait(locks, key, { waitMs: 300 });
    const ms = performance.now() - started;
    expect(result).toMatchObject({ outcome: 'timedOut', queue: 0, holders: [{ fencingToken: lock.fencingToken, owner: { executionId: 'in the way' } }] });
    expect(ms).toBeGreaterThanOrEqual(299);
    expect(ms).toBeLessThan(800);
    expect((result as { waitedMs: number }).waitedMs).toBeGreaterThanOrEqual(299);
  });

  it('may be joined with an immediate deadline', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { waitMs: 0 });
    expect(await wait(locks, key, { waitMs: 0 })).toMatchObject({ outcome: 'timedOut' });
    expect((await locks.status(key)).queue).toBe(0);
    await lock.release();
    expect((await wait(locks, key, { waitMs: 0 })).outcome).toBe('acquired');
  });

  it('F46, F66, M7: may be waited in for longer than any lease, and the lease counts from the grant', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key, { ttlMs: 200 });
    const beats = setInterval(() => void holder.heartbeat(), 50);
    const waiting = wait(locks, key, { ttlMs: 200 });
    await new Promise((resolve) => setTimeout(resolve, 700));
    clearInterval(beats);
    await holder.release();
    const won = await waiting;
    if (won.outcome !== 'acquired') throw new Error(won.outcome);
    expect(won.lock.grant.waitedMs).toBeGreaterThanOrEqual(650);
    expect(won.lock.expiresInMs()).toBeGreaterThan(100);
    expect(won.lock.expiresInMs()).toBeLessThanOrEqual(200);
  });

  it('F6: loses those whose time is over from its middle, and keeps its order', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const order: string[] = [];
    const all: Array<Promise<void>> = [];
    for (const [name, waitMs] of Object.entries({ a: 10_000, b: 1500, c: 10_000, d: 1500, e: 10_000 })) {
      const left = wait(locks, key, { waitMs }).then(async (won) => {
        order.push(`${name} ${won.outcome}`);
        if (won.outcome === 'acquired') await won.lock.release();
      });
      all.push(left);
      await inLine(bed.redis, key, all.length);
    }
    await inLine(bed.redis, key, 3);
    await holder.release();
    await Promise.all(all);
    expect(order.slice(0, 2).sort()).toEqual(['b timedOut', 'd timedOut']);
    expect(order.slice(2)).toEqual(['a acquired', 'c acquired', 'e acquired']);
  });

  it('moves on soon after a dead holder ran out', async () => {
    const locks = bed.locks();
    const key = newKey();
    const started = performance.now();
    await take(bed.locks(), key, { ttlMs: 1000 });
    const won = await wait(locks, key);
    expect(won.outcome).toBe('acquired');
    expect(performance.now() - started).toBeGreaterThanOrEqual(999);
    expect(performance.now() - started).toBeLessThan(1300);
  });

  it('F68: is bounded', async () => {
    const locks = bed.locks({ maxWaiters: 2 });
    const key = newKey();
    const holder = await take(locks, key);
    const waits = [wait(locks, key), wait(locks, key)];
    await inLine(bed.redis, key, 2);
    expect(await wait(locks, key)).toMatchObject({ outcome: 'busy', reason: 'lineFull', queue: 2 });
    await holder.release();
    expect((await waits[0]!).outcome).toBe('acquired');
  });

  it('F67: says how many wait behind a grant', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const waits = [wait(locks, key)];
    await inLine(bed.redis, key, 1);
    waits.push(wait(locks, key));
    await inLine(bed.redis, key, 2);
    await holder.release();
    expect(await waits[0]).toMatchObject({ outcome: 'acquired', lock: { grant: { queue: 1 } } });
  });

  it('serves a semaphore with as many at once as there is room', async () => {
    const locks = bed.locks();
    const key = newKey();
    const held = [await take(locks, key, { limit: 2 }), await take(locks, key, { limit: 2 })];
    const waits = [1, 2, 3].map(() => wait(locks, key, { limit: 2 }));
    await inLine(bed.redis, key, 3);
    await Promise.all(held.map((lock) => lock.release()));
    expect((await Promise.all(waits.slice(0, 2))).map(({ outcome }) => outcome)).toEqual(['acquired', 'acquired']);
    expect(await locks.status(key)).toMatchObject({ queue: 1, holders: [{}, {}] });
  });
});

describe('a grant that a message announces', () => {
  const bed = useBed();

  it('is given back when nobody here waits for it any more', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const waiting = wait(locks, key, { waitMs: 1500 });
    await inLine(bed.redis, key, 1);
    // The same process, after a crash of the caller: the place in line is still there, the waiter is not.
    const line = (locks as unknown as { waiters: { line: { remove(waiter: unknown): void; all(): unknown[] } } }).waiters.line;
    line.all().forEach((waiter) => line.remove(waiter));

    await holder.release();
    await until(async () => (await locks.status(key)).holders.length === 0, 1000);
    expect((await (await take(locks, key)).release()).outcome).toBe('released');
    expect((await waiting).outcome).toBe('timedOut');
  });

  it('is left alone when it comes after the answer that the lock is held', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await wait(locks, key, { waitMs: 0 }); // from now on this process listens
    let channel: string | undefined;
    await until(async () => ([channel] = (await bed.redis.pubsub('CHANNELS', 'rl:wake:*')) as string[]).length > 0);
    await bed.redis.publish(channel!, `grant ${lock.lockId} ${lock.fencingToken} ${Date.now()} 0 ${key}`);
    // The next call on the same connection comes behind whatever the message made it do.
    await until(async () => (await locks.status(key)).holders.length === 1);
    for (let i = 0; i < 5; i++) expect((await lock.heartbeat()).outcome).toBe('alive');
    expect((await lock.release()).outcome).toBe('released');
  });

  it('answers a waiter whose claim came too late by its old place', async () => {
    const [slow, quick] = [bed.locks(), bed.locks()];
    const key = newKey();
    const holder = await take(bed.locks(), key);
    const waits = [wait(slow, key)];
    await inLine(bed.redis, key, 1);
    waits.push(wait(quick, key));
    await inLine(bed.redis, key, 2);
    // Its process does not hear the message, and its grant runs out.
    const deaf = (slow as unknown as { waiters: { handOver(message: unknown): void } }).waiters;
    const { handOver } = deaf;
    deaf.handOver = () => {};
    await holder.release();
    const { holders } = await quick.status(key);
    expect(holders).toHaveLength(1);
    const id = (await bed.redis.hkeys(`{${key}}:rl:lock`)).find((field) => field.startsWith('@'))!.slice(1);
    await expire(bed.redis, key, id);
    // Anybody's next call finds that it was not claimed, and serves the next who answers.
    expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    deaf.handOver = handOver;

    const second = await waits[1]!;
    if (second.outcome !== 'acquired') throw new Error(second.outcome);
    expect((await quick.status(key)).queue).toBe(1);
    await second.lock.release();
    expect((await waits[0]!).outcome).toBe('acquired');
  }, 20_000);
});

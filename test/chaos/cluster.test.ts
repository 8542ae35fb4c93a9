import { Cluster } from 'ioredis';
import { createLocks, type AcquireOptions, type Lock, type Locks } from '../../engine';
import { until } from '../engine/support/until';
import { TestCluster } from './support/cluster';

/** Three masters: every script stays on one slot, and a message reaches a waiter wherever its subscriber is connected. */
describe('on a cluster', () => {
  let cluster: TestCluster;
  const clients: Cluster[] = [];
  const open: Locks[] = [];
  const unheard: unknown[] = [];
  const listen = (reason: unknown) => void unheard.push(reason);

  beforeAll(async () => {
    process.on('unhandledRejection', listen);
    cluster = await TestCluster.start();
  }, 30_000);

  afterEach(async () => {
    await Promise.all(open.splice(0).map((locks) => locks.close()));
    for (const master of cluster.masters) {
      for (const key of await master.keys('*')) expect(`${key} ${await master.pttl(key)}`).not.toMatch(/ -1$/);
      expect(await master.pubsub('CHANNELS', 'rl:wake:*')).toEqual([]);
    }
  });

  afterAll(async () => {
    for (const client of clients) client.disconnect();
    await cluster.stop();
    process.off('unhandledRejection', listen);
    expect(unheard).toEqual([]);
  });

  const newLocks = () => {
    const client = new Cluster(cluster.nodes);
    client.on('error', () => {});
    clients.push(client);
    const locks = createLocks({ redis: client }, { fencingRetentionMs: 200 });
    open.push(locks);
    return locks;
  };
  const take = async (locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Lock> => {
    const result = await locks.acquire(key, { ttlMs: 30_000, ...options });
    if (result.outcome !== 'acquired') throw new Error(JSON.stringify(result));
    return result.lock;
  };

  let names = 0;
  /** A key on each master. */
  const onEach = async (make: (i: number) => string): Promise<string[]> => {
    const found: string[] = [];
    while (found.filter(Boolean).length < 3) {
      const key = make(++names);
      found[await cluster.masterOf(key)] ??= key;
    }
    return found;
  };

  it.each([
    ['plain', (i: number) => `plain:${i}`],
    ['with a hash tag', (i: number) => `order:{customer ${i}}:paid`],
    ['with braces that are no tag', (i: number) => `{open:${i}`],
  ])('F26: every operation works on keys that are %s, on each master', async (_, make) => {
    const [locks, other] = [newLocks(), newLocks()];
    for (const [master, key] of (await onEach(make)).entries()) {
      const lock = await take(locks, key, { renewEveryMs: 10, owner: { instanceId: 'i', executionId: `${master}` } });
      expect(await other.acquire(key, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', reason: 'held' });
      expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', fencingToken: lock.fencingToken });
      expect(await other.status(key)).toMatchObject({ holders: [{ fencingToken: lock.fencingToken }], queue: 0 });
      expect(await other.acquire(key, { ttlMs: 1000, waitMs: 30 })).toMatchObject({ outcome: 'timedOut', queue: 0 });
      expect(await cluster.masters[master]!.exists(key)).toBe(1);
      await until(async () => (await other.status(key)).state === 'stale');
      const stolen = await other.steal(key, { if: 'stale', ttlMs: 30_000 });
      if (stolen.outcome !== 'stolen') throw new Error(JSON.stringify(stolen));
      expect(stolen.lock.fencingToken).toBeGreaterThan(lock.fencingToken);
      expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'stolen', by: { fencingToken: stolen.lock.fencingToken } });
      expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'stolen' });
      expect(await stolen.lock.release()).toMatchObject({ outcome: 'released' });
      expect(await other.status(key)).toMatchObject({ state: 'free', holders: [], queue: 0 });
    }
  }, 30_000);

  it('the line is handed on across processes, in order, on each master', async () => {
    const holders = newLocks();
    const engines = [newLocks(), newLocks(), newLocks()];
    for (const key of await onEach((i) => `line:${i}`)) {
      const first = await take(holders, key);
      const order: number[] = [];
      const waits = [];
      for (let i = 0; i < 9; i++) {
        const place = i;
        waits.push(
          take(engines[i % 3]!, key, { waitMs: 20_000 }).then(async (lock) => {
            order.push(place);
            await lock.release();
          }),
        );
        await until(async () => (await holders.status(key)).queue === i + 1);
      }
      const started = performance.now();
      await first.release();
      await Promise.all(waits);
      expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8]);
      // By messages: looking would take seconds.
      expect(performance.now() - started).toBeLessThan(2000);
    }
  }, 60_000);

  it('one who went away while waiting, and one whose lease ran out, are passed by', async () => {
    const [locks, patient] = [newLocks(), newLocks()];
    const [key] = (await onEach((i) => `gone:${i}`)) as [string];
    await take(locks, key, { ttlMs: 1000 });
    const impatient = new AbortController();
    const gone = take(locks, key, { waitMs: 20_000, signal: impatient.signal });
    await until(async () => (await locks.status(key)).queue === 1);
    const waiting = take(patient, key, { waitMs: 20_000 });
    await until(async () => (await locks.status(key)).queue === 2);
    impatient.abort(new Error('enough'));
    await expect(gone).rejects.toThrow('enough');
    await (await waiting).release();
  }, 20_000);

  it('a semaphore lets in as many as it has room for', async () => {
    const locks = newLocks();
    const [, key] = (await onEach((i) => `three:${i}`)) as [string, string];
    let [inside, most] = [0, 0];
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        const lock = await take(locks, key, { limit: 3, waitMs: 20_000 });
        most = Math.max(most, ++inside);
        await new Promise((resolve) => setTimeout(resolve, 3));
        inside -= 1;
        await lock.release();
      }),
    );
    expect(most).toBe(3);
  }, 30_000);

  it('what an execution holds and waits for is found and freed, on whatever master it lies', async () => {
    const [locks, other] = [newLocks(), newLocks()];
    const execution = { instanceId: 'i', executionId: '4711' };
    const keys = await onEach((i) => `index:${i}`);
    for (const key of keys) await take(locks, key, { owner: execution });
    const [awaited] = (await onEach((i) => `awaited:${i}`)) as [string];
    const holder = await take(other, awaited);
    const waiting = take(locks, awaited, { waitMs: 20_000, owner: execution });
    waiting.catch(() => {});
    // In line, and listening: until then it asks again by itself.
    await until(async () => (await clients[0]!.hvals(`{${awaited}}:rl:wait`)).some((asks) => asks.startsWith('rl:wake:')));

    expect((await other.heldBy(execution)).map(({ key }) => key).sort()).toEqual([...keys, awaited].sort());
    const freed = await other.releaseExecution(execution);
    expect(freed.filter(({ outcome }) => outcome === 'released').map(({ key }) => key).sort()).toEqual([...keys].sort());
    for (const key of keys) expect(await other.status(key)).toMatchObject({ state: 'free' });
    expect(await other.status(awaited)).toMatchObject({ queue: 0 });
    expect(await other.heldBy(execution)).toEqual([]);
    await holder.release();
  }, 20_000);

  it('a place that is kept is not handed the lock: who waits behind it is', async () => {
    const locks = newLocks();
    for (const key of await onEach((i) => `kept:${i}`)) {
      const holder = await take(locks, key);
      expect(await locks.acquire(key, { ttlMs: 30_000, waitMs: 0, keepPlaceMs: 10_000 })).toMatchObject({ outcome: 'timedOut' });
      const waiting = take(locks, key, { waitMs: 20_000 });
      await until(async () => (await locks.status(key)).queue === 2);
      await holder.release();
      expect((await waiting).grant.waitedMs).toBeLessThan(2500);
      await (await waiting).release();
    }
  }, 20_000);

  it('F24: scripts that a master has forgotten are sent again', async () => {
    const locks = newLocks();
    for (const key of await onEach((i) => `script:${i}`)) {
      const lock = await take(locks, key);
      for (const master of cluster.masters) await master.script('FLUSH');
      expect((await lock.heartbeat()).outcome).toBe('alive');
      for (const master of cluster.masters) await master.script('FLUSH');
      expect((await lock.release()).outcome).toBe('released');
    }
  });

  it('listing finds the locks of all masters', async () => {
    const locks = newLocks();
    const keys = await onEach((i) => `listed:${i}`);
    for (const key of keys) await take(locks, key);
    const found: string[] = [];
    for await (const { key } of locks.list({ match: 'listed:*' })) found.push(key);
    expect(found.sort()).toEqual([...keys].sort());
  });

  it('nothing is left when the times of all are over', async () => {
    const locks = newLocks();
    for (const key of await onEach((i) => `end:${i}`)) {
      await take(locks, key, { ttlMs: 100, owner: { instanceId: 'i', executionId: 'end' } });
      await locks.acquire(key, { ttlMs: 100, waitMs: 10, owner: { instanceId: 'i', executionId: 'end' } });
    }
    await until(async () => (await Promise.all(cluster.masters.map((master) => master.keys('*end*')))).flat().length === 0, 5000);
  });

  it('takes several keys on several masters, all or none', async () => {
    const [locks, other] = [newLocks(), newLocks()];
    const keys = await onEach((i) => `several:${i}`);
    const held = () => Promise.all(keys.map(async (key) => (await other.status(key)).holders.length));
    const result = await locks.acquireAll(keys, { ttlMs: 30_000, owner: { instanceId: 'i', executionId: '7' } });
    if (result.outcome !== 'acquired') throw new Error(JSON.stringify(result));
    expect(await held()).toEqual([1, 1, 1]);
    expect(await other.acquireAll(keys, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', reason: 'held' });
    await Promise.all(result.locks.map((lock) => lock.release()));

    const last = [...keys].sort().at(-1)!;
    const holder = await take(other, last);
    expect(await locks.acquireAll(keys, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', key: last });
    expect(await held()).toEqual(keys.map((key) => (key === last ? 1 : 0)));
    const waiting = locks.acquireAll(keys, { ttlMs: 30_000, waitMs: 10_000 });
    await until(async () => (await other.status(last)).queue === 1);
    await holder.release();
    const waited = await waiting;
    if (waited.outcome !== 'acquired') throw new Error(JSON.stringify(waited));
    expect(await held()).toEqual([1, 1, 1]);
    await Promise.all(waited.locks.map((lock) => lock.release()));
    await expect(locks.stealAll(keys, { if: 'any', ttlMs: 1000 })).rejects.toThrow('on a cluster');
  });

  it('sends out those who wait for what was done, or whom a newer one made needless', async () => {
    const [locks, other] = [newLocks(), newLocks()];
    for (const key of await onEach((i) => `out:${i}`)) {
      const doing = await locks.acquireOnce(key, { ttlMs: 30_000 });
      if (doing.outcome !== 'acquired') throw new Error(doing.outcome);
      const waiting = other.acquireOnce(key, { ttlMs: 30_000, waitMs: 10_000 });
      await until(async () => (await locks.status(key)).queue === 1);
      const older = other.acquire(key, { ttlMs: 30_000, waitMs: 10_000, waiting: 'newest' });
      await until(async () => (await locks.status(key)).queue === 2);
      const newer = locks.acquire(key, { ttlMs: 30_000, waitMs: 10_000, waiting: 'newest' });
      expect(await older).toMatchObject({ outcome: 'busy', reason: 'superseded' });
      await doing.lock.release({ doneForMs: 200, result: 'here' });
      expect(await waiting).toMatchObject({ outcome: 'doneBefore', done: { result: 'here' } });
      const served = await newer;
      if (served.outcome !== 'acquired') throw new Error(served.outcome);
      await served.lock.release();
    }
  });
});

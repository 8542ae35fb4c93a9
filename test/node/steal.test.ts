import { setTimeout as delay } from 'node:timers/promises';
import { useBed } from './harness/bed';
import { engineVersions, type Run } from './harness/engine';
import { heldToken } from './harness/look';
import { acquire, heartbeat, hold, release, steal, workflow, type Json } from './harness/workflow';

describe.each(engineVersions)('Steal on n8n-core %s', (version) => {
  const bed = useBed(version);

  /** Holds the key until the test lets it go on; then renews and releases, whatever became of the lock. */
  async function startHolder(key: string): Promise<Run> {
    const run = bed.engine.start(
      workflow(
        [acquire('Acquire', { key }), hold('Work'), heartbeat('Heartbeat', {}), release('Release', {})],
        'Start -> Acquire -> Work -> Heartbeat -> Release',
        'Heartbeat:Lost -> Release',
      ),
    );
    await run.reached('Work', 'holding');
    return run;
  }

  async function trySteal(key: string, parameters: Json) {
    return await bed.engine.run(workflow([steal('Steal', { key, ...parameters })], 'Start -> Steal'));
  }

  async function letGo(holder: Run) {
    await holder.letGo('Work');
    return await holder.finished;
  }

  it('by fencing token takes over from exactly the holder that was seen, who is told', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const seen = (await heldToken(bed.redis, key))!;

    const missed = await trySteal(key, { stealIf: 'fencingToken', fencingToken: seen - 1 });
    expect(missed.counts('Steal')).toEqual([0, 1]);
    expect(missed.locks('Steal', 'Not Stolen')).toMatchObject([{ stolen: false, key, reason: expect.any(String) }]);

    const thief = await trySteal(key, { stealIf: 'fencingToken', fencingToken: `={{ "${seen}" }}` });
    const [lock] = thief.locks('Steal', 'Stolen');
    expect(lock).toMatchObject({
      stolen: true,
      key,
      previousHolder: { executionId: holder.executionId, nodeName: 'Acquire', fencingToken: seen },
    });
    expect(lock.fencingToken).toBeGreaterThan(seen);
    expect(await heldToken(bed.redis, key)).toBe(lock.fencingToken);

    const robbed = await letGo(holder);
    expect(robbed.locks('Heartbeat', 'Lost')).toMatchObject([
      { alive: false, reason: expect.any(String), holder: { executionId: thief.executionId } },
    ]);
    expect(robbed.locks('Release', 'Not Held')).toMatchObject([
      { released: false, overlapped: true, holder: { executionId: thief.executionId } },
    ]);
    expect(await heldToken(bed.redis, key)).toBe(lock.fencingToken);
  });

  it('lets exactly one of eight contenders win', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const fencingToken = await heldToken(bed.redis, key);
    const results = await Promise.all(
      Array.from({ length: 8 }, async () => await trySteal(key, { stealIf: 'fencingToken', fencingToken })),
    );

    expect(results.filter((result) => result.counts('Steal')[0] === 1)).toHaveLength(1);
    expect(results.filter((result) => result.counts('Steal')[1] === 1)).toHaveLength(7);
    await letGo(holder);
  });

  it('robs a holder that was silent for longer than Stale After, and no other', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    await delay(1100); // A silence is made of time and of nothing else.

    expect((await trySteal(key, { stealIf: 'stale', staleAfter: 60 })).counts('Steal')).toEqual([0, 1]);
    // It never said how often it would renew.
    expect((await trySteal(key, {})).counts('Steal')).toEqual([0, 1]);
    expect((await trySteal(key, { stealIf: 'stale', staleAfter: 1 })).counts('Steal')).toEqual([1, 0]);
    await letGo(holder);
  });

  it('is done by Acquire itself with "Steal If Stale After"', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    await delay(1100);
    const result = await bed.engine.run(
      workflow([acquire('Acquire', { key, options: { stealIfStaleAfter: 1 } })], 'Start -> Acquire'),
    );

    expect(result.locks('Acquire', 'Acquired')).toMatchObject([{ acquired: true, key }]);
    expect((await letGo(holder)).counts('Heartbeat')).toEqual([0, 1]);
  });

  it('of whatever is there leaves a grant alone while it is young', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    expect((await trySteal(key, { stealIf: 'any' })).counts('Steal')).toEqual([0, 1]);

    await delay(5100);
    expect((await trySteal(key, { stealIf: 'any' })).counts('Steal')).toEqual([1, 0]);
    expect((await trySteal(key, { stealIf: 'any' })).counts('Steal')).toEqual([0, 1]);
    await letGo(holder);
  });

  it("takes a stranger's key that never expires, and no other of theirs", async () => {
    const [dead, alive] = [bed.key(), bed.key()];
    await bed.redis.set(dead, '1');
    await bed.redis.set(alive, '1', 'EX', 60);

    expect((await trySteal(alive, { stealIf: 'noTtl' })).counts('Steal')).toEqual([0, 1]);
    expect(await bed.redis.get(alive)).toBe('1');
    expect((await trySteal(dead, { stealIf: 'stale', staleAfter: 1 })).counts('Steal')).toEqual([0, 1]);
    expect((await trySteal(dead, { stealIf: 'noTtl' })).counts('Steal')).toEqual([1, 0]);
    expect(await bed.redis.pttl(dead)).toBeGreaterThan(500_000);
  });

  it('finds nothing to steal where nobody holds the key', async () => {
    const key = bed.key();
    const result = await trySteal(key, { stealIf: 'stale', staleAfter: 1 });

    expect(result.counts('Steal')).toEqual([0, 1]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('gives a lock that Heartbeat and Release know', async () => {
    const key = bed.key();
    await bed.redis.set(key, '1');
    const result = await bed.engine.run(
      workflow(
        [steal('Steal', { key, stealIf: 'noTtl' }), heartbeat('Heartbeat', {}), release('Release', {})],
        'Start -> Steal -> Heartbeat -> Release',
      ),
    );

    expect(result.counts('Heartbeat')).toEqual([1, 0]);
    expect(result.counts('Release')).toEqual([1, 0]);
    expect(await bed.redis.exists(key)).toBe(0);
  });
});

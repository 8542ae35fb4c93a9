import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { heldToken, untilFree } from './harness/look';
import { boom, careful, heartbeat, hold, release, wait, workflow } from './harness/workflow';

const HOUR_MS = 3_600_000;

describe.each(engineVersions)('the end of an execution on n8n-core %s', (version) => {
  const bed = useBed(version);
  const { acquire } = careful;

  /** What is left of a lock in Redis when a workflow that took it has come to its end. */
  const left = async (key: string) => await bed.redis.pttl(key);
  const between = (value: number, least: number, most: number) => {
    expect(value).toBeGreaterThan(least);
    expect(value).toBeLessThanOrEqual(most);
  };

  describe('with one Acquire and nothing else', () => {
    const section = (key: string, options = {}, ...more: Parameters<typeof workflow>[0]) =>
      workflow([acquire('Acquire', { key, ttl: 100, options }), ...more], ['Start -> Acquire', ...more.map(({ name }) => name)].join(' -> '));

    it('frees the lock after success, before n8n says that the execution has ended', async () => {
      const key = bed.key();
      const result = await bed.engine.run(section(key));
      expect(result.counts('Acquire')).toEqual([1, 0, 0]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('frees it after an error in the middle', async () => {
      const key = bed.key();
      const result = await bed.engine.run(section(key, {}, boom('Boom')));
      expect(result.status).toBe('error');
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('leaves it for a grace time after a stop, for code of other nodes may still be running', async () => {
      const key = bed.key();
      const run = bed.engine.start(section(key, {}, hold('Work')));
      await run.reached('Work', 'holding');
      between(await left(key), 60_000, 100_000);
      run.cancel();
      await until('the lock to be shortened', async () => (await left(key)) < 60_000);
      between(await left(key), 20_000, 30_000);
      await run.letGo('Work');
      expect((await run.finished).status).toBe('canceled');
      between(await left(key), 20_000, 30_000);
    });

    it('leaves it for another grace time where that is chosen, and never for longer than its TTL', async () => {
      const [short, long] = [bed.key(), bed.key()];
      for (const [key, stopGrace] of [[short, 5], [long, 900]] as const) {
        const run = bed.engine.start(section(key, { stopGrace }, hold('Work')));
        await run.reached('Work', 'holding');
        const before = await bed.redis.hvals(`{${key}}:rl:lock`);
        run.cancel();
        await until('the lock to be renewed', async () => String(await bed.redis.hvals(`{${key}}:rl:lock`)) !== String(before));
        await run.letGo('Work');
        await run.finished;
      }
      between(await left(short), 3000, 5000);
      between(await left(long), 90_000, 100_000);
    });

    it.each([
      ['on success', 'success', true, false],
      ['never', 'never', false, false],
    ])('frees it %s, where that is chosen', async (_, releaseOnEnd, afterSuccess, afterError) => {
      const keys = [bed.key(), bed.key(), bed.key()];
      await bed.engine.run(section(keys[0], { releaseOnEnd }));
      await bed.engine.run(section(keys[1], { releaseOnEnd }, boom('Boom')));
      const run = bed.engine.start(section(keys[2], { releaseOnEnd }, hold('Work')));
      await run.reached('Work', 'holding');
      run.cancel();
      await run.letGo('Work');
      await run.finished;
      expect(await Promise.all(keys.map(async (key) => (await heldToken(bed.redis, key)) === null))).toEqual([afterSuccess, afterError, false]);
      between(await left(keys[2]), 60_000, 100_000);
    });

    it('keeps it through a Wait, for the time until the resume and its TTL', async () => {
      const key = bed.key();
      const flow = section(key, {}, wait('Wait'), release('Release', {}));
      const suspended = await bed.engine.run(flow);
      expect(suspended.status).toBe('waiting');
      between(await left(key), HOUR_MS + 80_000, HOUR_MS + 100_000);

      const resumed = await bed.engine.resume(flow, suspended);
      expect(resumed.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('keeps it through a Wait for Max Hold at most', async () => {
      const key = bed.key();
      await bed.engine.run(section(key, { maxHold: 600 }, wait('Wait')));
      between(await left(key), 600_000, 700_000);
    });

    it('does not stretch it over a Wait without Keep Alive', async () => {
      const key = bed.key();
      await bed.engine.run(section(key, { keepAlive: false }, wait('Wait')));
      between(await left(key), 80_000, 100_000);
    });

    it('frees a lock that came through a Wait at the end of the execution, when a Redis Lock node followed', async () => {
      const key = bed.key();
      const flow = section(key, {}, wait('Wait'), heartbeat('Heartbeat', {}), hold('Work'));
      const suspended = await bed.engine.run(flow);
      const resumed = bed.engine.startResumed(flow, suspended);
      await resumed.reached('Work', 'holding');
      between(await left(key), 80_000, 100_000);
      await resumed.letGo('Work');
      await resumed.finished;
      expect(await bed.redis.exists(key)).toBe(0);
    });
  });

  it('does not free what somebody else has by then', async () => {
    const key = bed.key();
    const run = bed.engine.start(workflow([acquire('Acquire', { key }), hold('Work')], 'Start -> Acquire -> Work'));
    await run.reached('Work', 'holding');
    await bed.redis.del(key);
    const other = await bed.engine.run(workflow([acquire('Other', { key, options: { releaseOnEnd: 'never' } })], 'Start -> Other'));
    await run.letGo('Work');
    await run.finished;
    expect(await heldToken(bed.redis, key)).toBe(other.locks('Other', 'Acquired')[0].fencingToken);
  });
});

describe.each(engineVersions)('Keep Alive on n8n-core %s', (version) => {
  const bed = useBed(version);
  const { acquire } = careful;

  it('renews the lock of a run that takes longer than its TTL, and ends with it', async () => {
    const key = bed.key();
    const run = bed.engine.start(workflow([acquire('Acquire', { key, ttl: 1 }), hold('Work')], 'Start -> Acquire -> Work'));
    await run.reached('Work', 'holding');
    const token = await heldToken(bed.redis, key);
    const until3 = Date.now() + 3000;
    while (Date.now() < until3) {
      expect(await heldToken(bed.redis, key)).toBe(token);
      await sleep(50);
    }
    await run.letGo('Work');
    await run.finished;
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('ends at Max Hold', async () => {
    const key = bed.key();
    const options = { maxHold: 1 };
    const run = bed.engine.start(workflow([acquire('Acquire', { key, ttl: 1, options }), hold('Work')], 'Start -> Acquire -> Work'));
    await run.reached('Work', 'holding');
    await untilFree(bed.redis, key);
    await run.letGo('Work');
    await run.finished;
  });

  it('says at the next node that the lock was lost, and stops the execution there when so chosen', async () => {
    for (const stopWhenLost of [false, true]) {
      const key = bed.key();
      const flow = workflow(
        [acquire('Acquire', { key, ttl: 1, options: { stopWhenLost } }), hold('Work'), heartbeat('Heartbeat', {})],
        'Start -> Acquire -> Work -> Heartbeat -> More',
      );
      const run = bed.engine.start(flow);
      await run.reached('Work', 'holding');
      await bed.redis.del(key);
      // The renewal finds it, and forgets nothing of it.
      await until('the loss', async () => (await bed.redis.hget(`{${key}}:rl:lock`, 'lost')) !== null);
      await sleep(100);
      await run.letGo('Work');
      const result = await run.finished;
      if (stopWhenLost) {
        expect(result.status).toBe('error');
        expect(result.error?.message).toBe(
          `The lock "${key}" was lost while this execution ran (keyDeleted), so somebody else may be working on the same thing. What was done since is not protected: check it, and see Get Status for who has the lock now.`,
        );
      } else {
        expect(result.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, reason: 'keyDeleted', key }]);
      }
      expect(result.ran('More')).toBe(false);
    }
  });

  it('goes on with the lock in another process under a new token, and the older run has lost it', async () => {
    const key = bed.key();
    const flow = workflow(
      [acquire('Acquire', { key }), wait('Wait'), heartbeat('Heartbeat', {}), hold('Work'), heartbeat('Again', {}), release('Release', {})],
      'Start -> Acquire -> Wait -> Heartbeat -> Work -> Again -> Release',
      'Again:Lost -> Release',
    );
    const suspended = await bed.engine.run(flow);
    const first = suspended.locks('Acquire', 'Acquired')[0];

    // Resumed twice: by this process, and by another worker.
    const older = bed.engine.startResumed(flow, suspended);
    await older.reached('Work', 'holding');
    const newer = (await bed.secondEngine()).startResumed(flow, suspended);
    await newer.reached('Work', 'holding');
    await older.letGo('Work');
    const lost = await older.finished;
    const { executionId } = suspended;
    expect(lost.locks('Again', 'Lost')).toMatchObject([{ alive: false, reason: 'takenOver', takenOverBy: { executionId } }]);
    expect(lost.locks('Release', 'Not Held')).toMatchObject([{ released: false, reason: 'takenOver', takenOverBy: { executionId } }]);

    await newer.letGo('Work');
    const kept = await newer.finished;
    const [again] = kept.locks('Again', 'Alive');
    expect(again.fencingToken).toBeGreaterThan(Number(first.fencingToken));
    expect(kept.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });
});

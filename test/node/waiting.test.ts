import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions, type Engine, type Run, type RunOptions } from './harness/engine';
import { heldToken, lineKey, lineLength, untilFree, untilWaiting } from './harness/look';
import { acquire, heartbeat, hold, release, wait, workflow, type Json, type NodeSettings } from './harness/workflow';

/** Well below the 30 s of Max Wait, well above what a busy machine takes to do a thing "at once". */
const AT_ONCE_MS = 1500;

describe.each(engineVersions)('waiting on n8n-core %s', (version) => {
  const bed = useBed(version);

  /** Takes the lock, does something until the test lets it go on, gives the lock back. */
  async function startHolder(key: string, engine = bed.engine): Promise<Run> {
    const run = engine.start(
      workflow(
        [acquire('Acquire', { key }), hold('Work'), release('Release', {})],
        'Start -> Acquire -> Work -> Release',
      ),
    );
    await run.reached('Work', 'holding');
    return run;
  }

  const waiterFlow = (key: string, parameters: Json = {}, settings: NodeSettings = {}) =>
    workflow(
      [acquire('Acquire', { key, whenBusy: 'wait', ...parameters }, settings), release('Release', {})],
      'Start -> Acquire -> Release',
    );

  /** Starts an execution that finds the key taken, and returns when it stands in line. */
  async function startWaiter(
    key: string,
    { place = 1, engine = bed.engine, ...options }: { place?: number; engine?: Engine } & RunOptions = {},
  ) {
    const run = engine.start(waiterFlow(key), options);
    await untilWaiting(bed.redis, key, place);
    return run;
  }

  it('enters when the holder releases', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const waiter = await startWaiter(key);
    await holder.letGo('Work');

    const [first, second] = [await holder.finished, await waiter.finished];
    const [before] = first.locks('Acquire', 'Acquired');
    const [after] = second.locks('Acquire', 'Acquired');
    expect(second.counts('Acquire')).toEqual([1, 0, 0]);
    expect(after.acquired).toBe(true);
    expect(after.waitedMs).toBeGreaterThan(0);
    expect(after.fencingToken).toBeGreaterThan(before.fencingToken as number);
    expect(second.counts('Release')).toEqual([1, 0]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('enters one by one in the order of arrival, over two processes', async () => {
    const key = bed.key();
    const other = await bed.secondEngine();
    const holder = await startHolder(key);
    const waiters: Run[] = [];
    for (const [i, engine] of [other, bed.engine, other, bed.engine].entries()) {
      waiters.push(await startWaiter(key, { place: i + 1, engine }));
    }
    await holder.letGo('Work');

    const results = await Promise.all(waiters.map(async (waiter) => await waiter.finished));
    const tokens = results.map((result) => result.locks('Acquire', 'Acquired')[0].fencingToken as number);
    expect(tokens).toEqual([...tokens].sort((a, b) => a - b));
    expect(new Set(tokens).size).toBe(4);
  });

  describe('at the end of Max Wait', () => {
    let key: string;
    let holder: Run;

    beforeEach(async () => {
      key = bed.key();
      holder = await startHolder(key);
    });

    afterEach(async () => {
      await holder.letGo('Work');
      await holder.finished;
    });

    it('leaves through Timed Out', async () => {
      const result = await bed.engine.run(waiterFlow(key, { maxWait: 1 }));

      expect(result.counts('Acquire')).toEqual([0, 0, 1]);
      const [lock] = result.locks('Acquire', 'Timed Out');
      expect(lock).toMatchObject({
        acquired: false,
        key,
        holder: { executionId: holder.executionId, nodeName: 'Acquire' },
      });
      expect(lock.waitedMs).toBeGreaterThanOrEqual(1000);
      expect(lock.waitedMs).toBeLessThan(1000 + AT_ONCE_MS);
      expect(await lineLength(bed.redis, key)).toBe(0);
    });

    it('fails, where a time-out is an error', async () => {
      const result = await bed.engine.run(waiterFlow(key, { maxWait: 1, options: { onTimeout: 'error' } }));

      expect(result.status).toBe('error');
      expect(result.errorText).toContain(key);
      expect(result.errorText).not.toMatch(/cancell?ed/i);
      expect(await lineLength(bed.redis, key)).toBe(0);
    });

    it('fails through the Error output, where n8n has one', async () => {
      const parameters = { maxWait: 1, options: { onTimeout: 'error' } };
      const result = await bed.engine.run(waiterFlow(key, parameters, { onError: 'continueErrorOutput' }));

      expect(result.counts('Acquire')).toEqual([0, 0, 0, 1]);
      expect(result.items('Acquire', 'Error')[0].json.error).toContain(key);
    });

    it('goes on unprotected where the user chose that, and says so', async () => {
      const result = await bed.engine.run(
        workflow(
          [
            acquire('Acquire', { key, whenBusy: 'wait', maxWait: 1, options: { onTimeout: 'continue' } }),
            heartbeat('Heartbeat', {}),
            release('Release', {}),
          ],
          'Start -> Acquire -> Heartbeat:Lost -> Release',
        ),
      );

      expect(result.locks('Acquire', 'Acquired')).toMatchObject([{ acquired: false, protected: false, key }]);
      expect(result.counts('Heartbeat')).toEqual([0, 1]);
      expect(result.counts('Release')).toEqual([0, 1]);
      expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, neverHeld: true, key }]);
      expect(await heldToken(bed.redis, key)).not.toBeNull();
    });
  });

  describe('for several keys in one run', () => {
    const both = (settings: Json) =>
      workflow(
        [
          acquire('Acquire', { key: '={{ $json.key }}', whenBusy: 'wait', ...settings }),
          hold('Work'),
          release('Release', {}),
        ],
        'Start -> Acquire -> Work -> Release',
      );
    const itemsOf = (...keys: string[]) => keys.map((key) => ({ json: { key } }));

    it('F31: two executions that want the same ones in another order do not wait for each other for ever', async () => {
      const [a, b] = [bed.key(), bed.key()];
      const first = bed.engine.start(both({}), { items: itemsOf(a, b) });
      const second = bed.engine.start(both({}), { items: itemsOf(b, a) });
      await Promise.all([first.letGo('Work'), second.letGo('Work')]);

      for (const run of [first, second]) expect((await run.finished).counts('Acquire')).toEqual([2, 0, 0]);
      expect(await bed.redis.exists(a, b)).toBe(0);
    });

    it('Max Wait is for all of them together', async () => {
      const keys = [bed.key(), bed.key(), bed.key()];
      const holders = await Promise.all(keys.map(async (key) => await startHolder(key)));
      const startedAt = Date.now();
      const result = await bed.engine.run(both({ maxWait: 1 }), { items: itemsOf(...keys) });

      expect(result.counts('Acquire')).toEqual([0, 0, 3]);
      expect(Date.now() - startedAt).toBeLessThan(2000);
      for (const holder of holders) await holder.letGo('Work');
      await Promise.all(holders.map(async (holder) => await holder.finished));
    });

    it.each(['the execution is stopped', 'a time-out is an error'])(
      'F31: what was taken before is given back when %s, since nothing behind the node will do it',
      async (title) => {
        const stopped = title === 'the execution is stopped';
        const [free, taken] = [bed.key('a'), bed.key('b')];
        const holder = await startHolder(taken);
        const settings = stopped ? {} : { maxWait: 1, options: { onTimeout: 'error' } };
        const run = bed.engine.start(both(settings), { items: itemsOf(free, taken) });
        await untilWaiting(bed.redis, taken);
        expect(await bed.redis.exists(free)).toBe(1);
        if (stopped) run.cancel();

        expect((await run.finished).ran('Work')).toBe(false);
        expect(await bed.redis.exists(free)).toBe(0);
        await holder.letGo('Work');
        await holder.finished;
      },
    );
  });

  describe('when the execution is stopped', () => {
    it('ends at once and leaves the line', async () => {
      const key = bed.key();
      const holder = await startHolder(key);
      const waiter = await startWaiter(key);

      const stoppedAt = Date.now();
      waiter.cancel();
      const result = await waiter.finished;
      expect(Date.now() - stoppedAt).toBeLessThan(AT_ONCE_MS);
      expect(await lineLength(bed.redis, key)).toBe(0);
      expect(result.ran('Release')).toBe(false);
      expect(result.counts('Acquire')[0] ?? 0).toBe(0);
      expect(result.runs('Acquire')[0]?.error?.message ?? '').not.toMatch(/cancell?ed/i);

      await holder.letGo('Work');
      await holder.finished;
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('ends at once when the execution runs out of time', async () => {
      const key = bed.key();
      const holder = await startHolder(key);
      const startedAt = Date.now();
      const result = await bed.engine.run(waiterFlow(key), { executionTimeoutTimestamp: startedAt + 700 });

      expect(Date.now() - startedAt).toBeLessThan(700 + AT_ONCE_MS);
      expect(result.status).not.toBe('success');
      expect(result.ran('Release')).toBe(false);
      expect(result.counts('Acquire')[0] ?? 0).toBe(0);
      expect(await lineLength(bed.redis, key)).toBe(0);

      await holder.letGo('Work');
      await holder.finished;
    });

    it('does not let others lose their place', async () => {
      const key = bed.key();
      const holder = await startHolder(key);
      const leaver = await startWaiter(key);
      const stayer = await startWaiter(key, { place: 2 });
      leaver.cancel();
      await leaver.finished;
      await holder.letGo('Work');

      expect((await stayer.finished).counts('Acquire')).toEqual([1, 0, 0]);
    });

    it.each(Array.from({ length: 6 }, (_, i) => i))(
      'never keeps a lock that it does not know of: stop and release at the same time (%i)',
      async (i) => {
        const key = bed.key();
        const holder = await startHolder(key);
        const waiter = await startWaiter(key);
        if (i % 2 === 0) waiter.cancel();
        await holder.letGo('Work');
        waiter.cancel();

        const result = await waiter.finished;
        await holder.finished;
        const knows = result.counts('Acquire')[0] === 1;
        if (knows && !result.ran('Release')) expect(await heldToken(bed.redis, key)).not.toBeNull();
        else await untilFree(bed.redis, key);
        expect(await lineLength(bed.redis, key)).toBe(0);
      },
    );

    it('gives back a lock that was granted while its process did not answer', async () => {
      const key = bed.key();
      const frozen = await bed.secondEngine();
      const holder = await startHolder(key);
      const waiter = await startWaiter(key, { engine: frozen });

      process.kill(frozen.pid, 'SIGSTOP');
      try {
        await holder.letGo('Work');
        await holder.finished;
        waiter.cancel();
      } finally {
        process.kill(frozen.pid, 'SIGCONT');
      }
      const result = await waiter.finished;
      const knows = result.counts('Acquire')[0] === 1;
      if (!knows) await untilFree(bed.redis, key);
      expect(await lineLength(bed.redis, key)).toBe(0);
    });
  });
});

describe.each(engineVersions)('Keep Place in Line on n8n-core %s', (version) => {
  const bed = useBed(version);

  it('goes on waiting where it was, before who came later, also after a Wait in another process', async () => {
    const key = bed.key();
    const parameters = { key, whenBusy: 'wait', maxWait: 0.3, options: { keepPlace: 60 } };
    const flow = workflow(
      [acquire('Acquire', parameters), wait('Pause'), acquire('Again', { ...parameters, maxWait: 20 }), hold('Section')],
      'Start -> Acquire:Timed Out -> Pause -> Again -> Section',
    );
    const holder = bed.engine.start(workflow([acquire('Acquire', { key }), hold('Hold'), release('Release', {})], 'Start -> Acquire -> Hold -> Release'));
    await holder.reached('Hold', 'holding');
    const suspended = await bed.engine.run(flow);
    expect(suspended.status).toBe('waiting');
    const [place] = (await bed.redis.zrange(lineKey(key), '0', '0')) as string[];

    const later = bed.engine.start(workflow([acquire('Later', { ...parameters, maxWait: 20 }), hold('Then')], 'Start -> Later -> Then'));
    await untilWaiting(bed.redis, key, 2);
    const resumed = (await bed.secondEngine()).startResumed(flow, suspended);
    await resumed.reached('Again');
    await until('its place to be taken up again', async () => !(await bed.redis.hget(`{${key}}:rl:wait`, place))?.startsWith('- '));
    await holder.letGo('Hold');
    await resumed.reached('Section', 'holding');
    expect(await bed.redis.hexists(`{${key}}:rl:lock`, `@${place}`)).toBe(1);
    await resumed.letGo('Section');
    const result = await resumed.finished;
    expect(result.locks('Again', 'Acquired')).toMatchObject([{ acquired: true, key, lockId: place }]);
    await bed.redis.del(key);
    await later.letGo('Then');
    await later.finished;
  });
});

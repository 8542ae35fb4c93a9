import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions, type Run } from './harness/engine';
import { lineKey, lineLength, untilWaiting } from './harness/look';
import type { Result } from './harness/result';
import { acquire as outliving, call, careful, heartbeat, hold, named, release, runWorkflow, wait, workflow, type Json } from './harness/workflow';

const { acquire } = careful;

describe.each(engineVersions)('Waiting: Only the Newest on n8n-core %s', (version) => {
  const bed = useBed(version);

  const newest = (key: string, options: Json = {}, more: Json = {}) => ({ key, whenBusy: 'wait', maxWait: 25, ...more, options: { waitingPolicy: 'newest', ...options } });
  const section = (parameters: Json) =>
    workflow([acquire('Acquire', parameters), hold('Work'), release('Release', {})], 'Start -> Acquire -> Work -> Release', 'Acquire:Busy -> Is busy', 'Acquire:Timed Out -> Is late');
  const newestId = async (key: string) => await bed.redis.hget(`{${key}}:rl:lock`, 'newest');

  async function startHolder(key: string): Promise<Run> {
    const run = bed.engine.start(section({ key }));
    await run.reached('Work', 'holding');
    return run;
  }
  async function end(run: Run): Promise<Result> {
    await run.letGo('Work');
    return await run.finished;
  }
  /** Returns when it is the newest of those that stand in line. */
  async function startNewest(key: string, options: Json = {}, { engine = bed.engine, more = {} as Json } = {}): Promise<Run> {
    const before = await newestId(key);
    const run = engine.start(section(newest(key, options, more)));
    await until('it to be the newest', async () => ![before, null].includes(await newestId(key)), { everyMs: 5 });
    return run;
  }
  function expectSuperseded(result: Result, key: string, by: Run, holder?: Run) {
    expect(result.counts('Acquire')).toEqual([0, 1, 0]);
    const [lock] = result.locks('Acquire', 'Busy');
    expect(lock).toMatchObject({
      acquired: false,
      key,
      reason: 'superseded',
      supersededBy: { executionId: by.executionId, executionUrl: expect.stringContaining(`executions/${by.executionId}`), workflowId: 'wf-1', nodeName: 'Acquire' },
      ...(holder && { holder: { executionId: holder.executionId } }),
    });
    expect([result.ran('Work'), result.ran('Is busy'), result.ran('Release')]).toEqual([false, true, false]);
  }

  it('after a burst exactly the one that runs and the newest do the work; each other hears at once which came after it', async () => {
    const key = bed.key();
    const other = await bed.secondEngine();
    const holder = await startHolder(key);
    const burst: Run[] = [];
    for (let n = 0; n < 10; n++) burst.push(await startNewest(key, {}, { engine: n % 2 ? other : bed.engine }));
    for (const [n, run] of burst.slice(0, -1).entries()) expectSuperseded(await run.finished, key, burst[n + 1], holder);
    expect(await lineLength(bed.redis, key)).toBe(1);

    const last = burst[9];
    expect(last.events.some(({ name }) => name === 'holding')).toBe(false);
    expect((await end(holder)).locks('Release', 'Released')).toMatchObject([{ released: true }]);
    const result = await end(last);
    expect(result.counts('Acquire')).toEqual([1, 0, 0]);
    expect(result.locks('Acquire', 'Acquired')[0]).not.toHaveProperty('supersededBy');
    expect(await bed.redis.exists(key, lineKey(key))).toBe(0);
  });

  it('enters a free lock at once, and a newer one does not put out who works', async () => {
    const key = bed.key();
    const first = bed.engine.start(section(newest(key)));
    await first.reached('Work', 'holding');
    const second = await startNewest(key);
    expect((await end(first)).counts('Acquire')).toEqual([1, 0, 0]);
    expect((await end(second)).counts('Acquire')).toEqual([1, 0, 0]);
  });

  it('puts out nobody who waits in turn, and waits behind them', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const turn = bed.engine.start(section({ key, whenBusy: 'wait', options: { waitingPolicy: 'turn' } }));
    await untilWaiting(bed.redis, key);
    const old = await startNewest(key);
    const last = await startNewest(key);
    expectSuperseded(await old.finished, key, last);
    await end(holder);
    await turn.reached('Work', 'holding');
    expect(await lineLength(bed.redis, key)).toBe(1);
    await end(turn);
    expect((await end(last)).counts('Acquire')).toEqual([1, 0, 0]);
  });

  it('leaves nobody in line where the newest is stopped, until the next one comes', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const old = await startNewest(key);
    const stopped = await startNewest(key);
    expectSuperseded(await old.finished, key, stopped);
    stopped.cancel();
    expect((await stopped.finished).ran('Work')).toBe(false);
    expect(await lineLength(bed.redis, key)).toBe(0);
    const next = await startNewest(key);
    await end(holder);
    expect((await end(next)).counts('Acquire')).toEqual([1, 0, 0]);
  });

  it('times out like any other', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const late = await bed.engine.run(section(newest(key, {}, { maxWait: 0.1 })));
    expect(late.locks('Acquire', 'Timed Out')).toMatchObject([{ acquired: false, reason: 'timedOut', holder: { executionId: holder.executionId } }]);
    await end(holder);
  });

  it('is told to one who kept its place, when it comes back after a Wait, also in another process', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const flow = workflow(
      [acquire('First', newest(key, { keepPlace: 60 }, { maxWait: 0.1 })), wait('Pause'), acquire('Again', newest(key, { keepPlace: 60 }))],
      'Start -> First:Timed Out -> Pause -> Again -> Section',
    );
    const suspended = await bed.engine.run(flow);
    expect(suspended.status).toBe('waiting');
    const newer = await startNewest(key);
    const resumed = await (await bed.secondEngine()).resume(flow, suspended);
    expect(resumed.locks('Again', 'Busy')).toMatchObject([{ acquired: false, reason: 'superseded', supersededBy: { executionId: newer.executionId } }]);
    expect(resumed.ran('Section')).toBe(false);
    expect(await lineLength(bed.redis, key)).toBe(1);
    await end(holder);
    expect((await end(newer)).counts('Acquire')).toEqual([1, 0, 0]);
  });

  it('goes on from the place that it kept where nothing newer came', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const flow = workflow(
      [acquire('First', newest(key, { keepPlace: 60 }, { maxWait: 0.1 })), wait('Pause'), acquire('Again', newest(key, { keepPlace: 60 })), hold('Work')],
      'Start -> First:Timed Out -> Pause -> Again -> Work',
    );
    const suspended = await bed.engine.run(flow);
    const [place] = await bed.redis.zrange(lineKey(key), '0', '-1');
    const turn = bed.engine.start(section({ key, whenBusy: 'wait' }));
    await untilWaiting(bed.redis, key, 2);
    const resumed = bed.engine.startResumed(flow, suspended);
    await until('its place to be taken up again', async () => !(await bed.redis.hget(`{${key}}:rl:wait`, place))?.startsWith('- '));
    await end(holder);
    await resumed.reached('Work', 'holding');
    expect(await lineLength(bed.redis, key)).toBe(1);
    expect((await end(resumed)).locks('Again', 'Acquired')).toMatchObject([{ acquired: true, lockId: place }]);
    await end(turn);
  });

  it('sends out through Busy whatever On Timeout says, which is about time only', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const old = await startNewest(key, { onTimeout: 'continue' });
    const last = await startNewest(key, { onTimeout: 'error' });
    expectSuperseded(await old.finished, key, last, holder);
    await end(holder);
    await end(last);
  });

  it('is for each key of several items', async () => {
    const [a, b] = [bed.key('a'), bed.key('b')];
    const holder = await startHolder(b);
    const items = [a, b].map((key) => ({ json: { key } }));
    const flow = workflow([acquire('Acquire', newest('={{ $json.key }}')), heartbeat('Heartbeat', {})], 'Start -> Acquire -> Heartbeat');
    const run = bed.engine.start(flow, { items });
    await until('it to stand in line', async () => (await newestId(b)) !== null);
    const last = await startNewest(b);
    const result = await run.finished;
    expect(result.counts('Acquire')).toEqual([1, 1, 0]);
    expect(result.locks('Acquire', 'Acquired')).toMatchObject([{ acquired: true, key: a }]);
    expect(result.locks('Acquire', 'Busy')).toMatchObject([{ key: b, reason: 'superseded', supersededBy: { executionId: last.executionId } }]);
    await end(holder);
    await end(last);
  });

  it('does not run the workflow of a Run Workflow that is superseded', async () => {
    const key = bed.key();
    const holder = await startHolder(key);
    const child = named('child', workflow([], 'Start -> Inside'));
    const old = bed.engine.start(workflow([runWorkflow('Run', { ...newest(key), workflowId: 'child' })], 'Start -> Run'), { workflows: [child] });
    await until('it to stand in line', async () => (await newestId(key)) !== null);
    const last = await startNewest(key);
    expect((await old.finished).locks('Run', 'Busy')).toMatchObject([{ acquired: false, reason: 'superseded', supersededBy: { executionId: last.executionId } }]);
    expect(old.children).toEqual([]);
    await end(holder);
    await end(last);
  });

  it('says superseded, not held by the caller, in a sub-workflow of one that holds a permit', async () => {
    const key = bed.key();
    const two = { maxHolders: 2 };
    // Room enough, but somebody who wants the lock for himself stands in front.
    const child = named('child', workflow([acquire('Acquire', newest(key, two))], 'Start -> Acquire -> Inside', 'Acquire:Busy -> Is busy'));
    const flow = workflow([acquire('First', { key, options: two }), hold('Work'), call('Call', 'child')], 'Start -> First -> Work -> Call');
    const caller = bed.engine.start(flow, { workflows: [child] });
    await caller.reached('Work', 'holding');
    const alone = bed.engine.start(section({ key, whenBusy: 'wait' }));
    await untilWaiting(bed.redis, key);
    await caller.letGo('Work');
    await untilWaiting(bed.redis, key, 2);
    const last = await startNewest(key, two);
    await caller.finished;
    expect(caller.children[0].result.locks('Acquire', 'Busy')).toMatchObject([{ reason: 'superseded', supersededBy: { executionId: last.executionId } }]);
    await end(alone);
    await end(last);
  });

  describe('with a Settle Time', () => {
    it('enters when nothing newer has come for that long, also where the lock is free', async () => {
      const key = bed.key();
      const burst: Run[] = [];
      for (let n = 0; n < 4; n++) {
        burst.push(await startNewest(key, { settleTime: 1 }));
        expect(await bed.redis.exists(key)).toBe(0);
      }
      const lastAt = Date.now();
      for (const [n, run] of burst.slice(0, -1).entries()) expectSuperseded(await run.finished, key, burst[n + 1]);
      await burst[3].reached('Work', 'holding');
      expect(Date.now() - lastAt).toBeLessThan(4000);
      const result = await end(burst[3]);
      const { waitedMs } = result.locks('Acquire', 'Acquired')[0];
      expect(waitedMs).toBeGreaterThanOrEqual(990);
      expect(await bed.redis.exists(key, lineKey(key))).toBe(0);
    });

    it('waits for the holder after that', async () => {
      const key = bed.key();
      const holder = await startHolder(key);
      const waiter = await startNewest(key, { settleTime: 0.05 });
      const [id] = await bed.redis.zrange(lineKey(key), '0', '-1');
      const [, from] = /n(\d+):/.exec(String(await bed.redis.hget(`{${key}}:rl:wait`, id))) ?? [];
      await until('it to have settled', async () => {
        const [s, us] = await bed.redis.time();
        return Number(s) * 1000 + Number(us) / 1000 > Number(from);
      });
      expect(await lineLength(bed.redis, key)).toBe(1);
      await end(holder);
      expect((await end(waiter)).counts('Acquire')).toEqual([1, 0, 0]);
    });

    it('enters at the latest Settle At Most after the first of a burst that does not end', async () => {
      const key = bed.key();
      const options = { settleTime: 5, settleAtMost: 5 };
      const startedAt = Date.now();
      const burst = [await startNewest(key, options)];
      const working = () => burst.find(({ events }) => events.some(({ name }) => name === 'holding'));
      // Newer ones all the time, so that none ever settles.
      while (!working() && Date.now() - startedAt < 20_000) {
        const before = await newestId(key);
        burst.push(bed.engine.start(section(newest(key, options))));
        await until('a newer one, or the one that works', async () => working() ?? (await newestId(key)) !== before, { everyMs: 5 });
        await sleep(100);
      }
      const run = working()!;
      const took = Date.now() - startedAt;
      expect(took).toBeGreaterThan(4900);
      expect(took).toBeLessThan(9000);
      for (const each of burst) if (each !== run) each.cancel();
      const results = await Promise.all(burst.map(async (each) => await (each === run ? end(run) : each.finished)));
      expect(results.filter((result) => result.ran('Work'))).toHaveLength(1);
      const [{ waitedMs }] = results[burst.indexOf(run)].locks('Acquire', 'Acquired');
      expect(waitedMs).toBeLessThan(4900);
    });

    it('does not hold back those that wait in turn', async () => {
      const key = bed.key();
      const settling = await startNewest(key, { settleTime: 10 });
      const turn = await bed.engine.run(workflow([outliving('Acquire', { key, whenBusy: 'wait' }), release('Release', {})], 'Start -> Acquire -> Release'));
      expect(turn.counts('Acquire')).toEqual([1, 0, 0]);
      expect(await lineLength(bed.redis, key)).toBe(1);
      settling.cancel();
      await settling.finished;
    });
  });
});

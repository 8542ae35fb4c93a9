import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions, type Run } from './harness/engine';
import { lineLength, untilFree, untilWaiting } from './harness/look';
import { call, careful, getStatus, hold, loop, named, release, replace, runWorkflow, wait, workflow, type Json, type NodeSettings } from './harness/workflow';

const { acquire } = careful;

/** Several may hold these locks; each test asks for its own number, or for its own mode. */
function useSections(version: (typeof engineVersions)[number]) {
  const bed = useBed(version);
  return {
    bed,
    section: (key: string, parameters: Json = {}) =>
      workflow([acquire('Acquire', { key, ...parameters }), hold('Work'), release('Release', {})], 'Start -> Acquire -> Work -> Release'),
    /** Starts an execution that holds the lock until the test lets it go on. */
    async hold(key: string, parameters: Json = {}, engine = bed.engine): Promise<Run> {
      const run = engine.start(this.section(key, parameters));
      await run.reached('Work', 'holding');
      return run;
    },
    async end(run: Run) {
      await run.letGo('Work');
      return await run.finished;
    },
    statusOf: async (key: string) =>
      (await bed.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'))).locks('Status', 'Status')[0],
  };
}

describe.each(engineVersions)('Max Holders on n8n-core %s', (version) => {
  const sections = useSections(version);
  const { bed } = sections;
  const of = (maxHolders: unknown, parameters: Json = {}) => ({ ...parameters, options: { maxHolders, ...(parameters.options as Json) } });
  const permits = ({ holders, maxHolders, freePermits, differentMaxHolders }: Json) => [holders, maxHolders, freePermits, differentMaxHolders];

  it('lets in so many at once, in all processes, and says how many there are', async () => {
    const key = bed.key();
    const other = await bed.secondEngine();
    const runs: Run[] = [];
    for (const [n, engine] of [bed.engine, other, bed.engine].entries()) {
      runs.push(await sections.hold(key, of(3), engine));
      expect(permits(await sections.statusOf(key))).toEqual([n + 1, 3, 2 - n, undefined]);
    }
    const busy = await bed.engine.run(sections.section(key, of(3)));
    expect(busy.counts('Acquire')).toEqual([0, 1, 0]);
    expect(busy.locks('Acquire', 'Busy')).toMatchObject([{ acquired: false, reason: 'held', holder: { executionId: runs[2].executionId } }]);

    const results = [await sections.end(runs[1])];
    expect(permits(await sections.statusOf(key))).toEqual([2, 3, 1, undefined]);
    const next = await sections.hold(key, of(3), other);
    for (const run of [runs[0], runs[2], next]) results.push(await sections.end(run));
    const locks = results.flatMap((result) => result.locks('Acquire', 'Acquired'));
    expect(locks.map(permits)).toEqual([[2, 3, 1, undefined], [1, 3, 2, undefined], [3, 3, 0, undefined], [3, 3, 0, undefined]]);
    expect(new Set(locks.map(({ lockId }) => lockId)).size).toBe(4);
    expect(new Set(locks.map(({ fencingToken }) => fencingToken)).size).toBe(4);
    for (const result of results) expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
    expect(await sections.statusOf(key)).toEqual({ state: 'free', key, queueLength: 0, fencingToken: locks[3].fencingToken });
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('says nothing of permits where there is one', async () => {
    const key = bed.key();
    const run = await sections.hold(key);
    expect(permits(await sections.statusOf(key))).toEqual([undefined, undefined, undefined, undefined]);
    expect(permits((await sections.end(run)).locks('Acquire', 'Acquired')[0])).toEqual([undefined, undefined, undefined, undefined]);
  });

  it('lets waiters in one by one as permits are given back, in the order of their arrival', async () => {
    const key = bed.key();
    const holders = [await sections.hold(key, of(2)), await sections.hold(key, of(2))];
    const waiters: Run[] = [];
    for (let n = 1; n <= 4; n++) {
      waiters.push(bed.engine.start(sections.section(key, of(2, { whenBusy: 'wait' }))));
      await untilWaiting(bed.redis, key, n);
    }
    for (const [n, run] of [...holders, ...waiters].entries()) {
      await sections.end(run);
      const next = waiters[n];
      if (!next) continue;
      await next.reached('Work', 'holding');
      expect(await lineLength(bed.redis, key)).toBe(3 - n);
      expect(permits(await sections.statusOf(key))).toEqual([2, 2, 0, undefined]);
    }
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('counts an execution once, however often it takes the lock', async () => {
    const key = bed.key();
    const flow = workflow(
      [acquire('Acquire', { key, ...of(2) }), loop('Loop'), acquire('Again', { key, ...of(2) }), hold('Work')],
      'Start -> Acquire -> Loop',
      'Loop:Loop -> Again -> Loop',
      'Loop:Done -> Work',
    );
    const run = bed.engine.start(flow, { items: [{ json: {} }, { json: {} }, { json: {} }] });
    await run.reached('Work', 'holding');
    expect(permits(await sections.statusOf(key))).toEqual([1, 2, 1, undefined]);
    const result = await sections.end(run);
    expect(result.locks('Again', 'Acquired').map(({ reentrant, holders, freePermits }) => [reentrant, holders, freePermits])).toEqual(Array(3).fill([true, 1, 1]));
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('takes the smallest of different numbers, and says that they differ', async () => {
    const key = bed.key();
    const runs = [await sections.hold(key, of(5)), await sections.hold(key, of(2))];
    expect(permits(await sections.statusOf(key))).toEqual([2, 2, 0, [2, 5]]);
    const ask = async (maxHolders: number) => (await bed.engine.run(sections.section(key, of(maxHolders)))).locks('Acquire', 'Busy');
    expect(await ask(5)).toMatchObject([{ acquired: false, reason: 'otherLimit' }]);
    expect(await ask(1)).toMatchObject([{ acquired: false, reason: 'held' }]);

    const [first, second] = [await sections.end(runs[0]), await sections.end(runs[1])];
    expect(permits(first.locks('Acquire', 'Acquired')[0])).toEqual([1, 5, 4, undefined]);
    expect(permits(second.locks('Acquire', 'Acquired')[0])).toEqual([2, 2, 0, [2, 5]]);
  });

  it('says so too where one of them is a mutex', async () => {
    const key = bed.key();
    const run = await sections.hold(key);
    const busy = await bed.engine.run(sections.section(key, of(3)));
    expect(busy.locks('Acquire', 'Busy')).toMatchObject([{ acquired: false, reason: 'otherLimit', holder: { executionId: run.executionId } }]);
    await sections.end(run);
  });

  it('gives the permit of a holder that was killed to the next when its TTL is over, and takes nothing from the others', async () => {
    const key = bed.key();
    const doomed = await bed.secondEngine();
    const alive = await sections.hold(key, of(2, { ttl: 1 }));
    await sections.hold(key, of(2, { ttl: 2 }), doomed);
    const killedAt = Date.now();
    doomed.signal('SIGKILL');
    const waiter = bed.engine.start(sections.section(key, of(2, { whenBusy: 'wait' })));
    await untilWaiting(bed.redis, key);
    expect(permits(await sections.statusOf(key))).toEqual([2, 2, 0, undefined]);

    await waiter.reached('Work', 'holding');
    // Its last renewal was less than a third of the TTL before.
    expect(Date.now() - killedAt).toBeGreaterThan(1200);
    expect(Date.now() - killedAt).toBeLessThan(4500);
    expect(permits(await sections.statusOf(key))).toEqual([2, 2, 0, undefined]);
    expect((await sections.end(alive)).locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
    expect(permits(await sections.statusOf(key))).toEqual([1, 2, 1, undefined]);
    await sections.end(waiter);
  });

  it('keeps a permit a permit through a Wait, also in another process', async () => {
    const key = bed.key();
    const flow = workflow([acquire('Acquire', { key, ...of(2) }), wait('Wait'), acquire('Again', { key, ...of(2) }), hold('Work')], 'Start -> Acquire -> Wait -> Again -> Work');
    const suspended = await bed.engine.run(flow);
    const other = await sections.hold(key, of(2));
    const resumed = (await bed.secondEngine()).startResumed(flow, suspended);
    await resumed.reached('Work', 'holding');
    expect(permits(await sections.statusOf(key))).toEqual([2, 2, 0, undefined]);
    expect((await sections.end(resumed)).locks('Again', 'Acquired')).toMatchObject([{ reentrant: true, holders: 2, maxHolders: 2, freePermits: 0 }]);
    await sections.end(other);
    await untilFree(bed.redis, key);
  });

  it('is for each key of several items', async () => {
    const [full, free] = [bed.key(), bed.key()];
    const run = await sections.hold(full, of(1));
    const items = [full, free, free].map((key, n) => ({ json: { key, n } }));
    const result = await bed.engine.run(workflow([acquire('Acquire', { key: '={{ $json.key }}', ...of(2) })], 'Start -> Acquire'), { items });
    expect(result.counts('Acquire')).toEqual([2, 1, 0]);
    expect(result.locks('Acquire', 'Acquired').map((lock) => [lock.key, ...permits(lock)])).toEqual(Array(2).fill([free, 1, 2, 1, undefined]));
    await sections.end(run);
  });

  describe('of equal keys in one run', () => {
    const cases: Array<[string, Json[], string]> = [
      ['Max Holders', [{ maxHolders: 2 }, { maxHolders: 3 }], 'Max Holders (item 1) is 3, but item 0 asks for the same key "KEY" with 2. Give equal keys the same Max Holders.'],
      ['Mode', [{ mode: 'shared' }, { mode: 'exclusive' }], 'Mode (item 1) is Exclusive, but item 0 asks for the same key "KEY" with Shared. Give equal keys the same Mode.'],
      ['TTL', [{ ttl: 60 }, { ttl: 90 }], 'TTL (item 1) is 90 s, but item 0 asks for the same key "KEY" with 60 s. Give equal keys the same TTL.'],
    ];
    const parameters = { ttl: '={{ $json.ttl ?? 60 }}', options: { maxHolders: '={{ $json.maxHolders ?? 1 }}', mode: '={{ $json.mode ?? "exclusive" }}' } };
    const run = async (key: string, terms: Json[], settings: NodeSettings = {}) =>
      await bed.engine.run(workflow([acquire('Acquire', { key, ...parameters }, settings), hold('Work')], 'Start -> Acquire'), { items: terms.map((json) => ({ json })) });

    it.each(cases)('must be the same, as %s must', async (_name, terms, message) => {
      const key = bed.key();
      const stopped = await run(key, terms);
      expect(stopped.error).toMatchObject({ node: 'Acquire', itemIndex: 1, message: message.replace('KEY', key) });
      expect(await bed.redis.keys(`*${key}*`)).toEqual([]);

      const continued = await run(key, terms, { onError: 'continueErrorOutput' });
      expect(continued.counts('Acquire')).toEqual([1, 0, 0, 1]);
      expect(continued.items('Acquire', 'Error')).toMatchObject([{ json: { error: message.replace('KEY', key) } }]);
    });

    it.each(cases)('must be the same around one run of Run Workflow, as %s must', async (name, terms) => {
      const key = bed.key();
      const child = named('child', workflow([], 'Start -> Answer'));
      const flow = workflow([runWorkflow('Run', { key, workflowId: 'child', ...parameters })], 'Start -> Run');
      const runs = bed.engine.start(flow, { workflows: [child], items: terms.map((json) => ({ json })) });
      const result = await runs.finished;
      expect(result.error?.itemIndex).toBe(1);
      expect(result.errorText).toMatch(new RegExp(`^${name} \\(item 1\\) is ".*", but ".*" for the first item: Once With All Items has one for all\\. Choose Once for Each Item\\.`));
      expect(runs.children).toEqual([]);
      expect(await bed.redis.keys(`*${key}*`)).toEqual([]);
    });
  });

  it('is for Run Workflow too', async () => {
    const key = bed.key();
    const child = named('child', workflow([hold('Inside')], 'Start -> Inside'));
    const flow = workflow([runWorkflow('Run', { key, workflowId: 'child', ...of(2) })], 'Start -> Run');
    const start = () => bed.engine.start(flow, { workflows: [child] });
    const runs = [start(), start()];
    for (const run of runs) await run.reached('Inside', 'holding');
    expect(permits(await sections.statusOf(key))).toEqual([2, 2, 0, undefined]);
    const third = start();
    expect((await third.finished).locks('Run', 'Busy')).toMatchObject([{ acquired: false, reason: 'held' }]);
    expect(third.children).toEqual([]);
    for (const run of runs) {
      await run.letGo('Inside');
      expect((await run.finished).locks('Run', 'Done')).toMatchObject([{ acquired: true, released: true, key }]);
    }
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('gives a sub-workflow a permit of its own beside that of its caller, and is Busy at once where there is none', async () => {
    const key = bed.key();
    for (const [maxHolders, branch] of [[2, 'Acquired'], [1, 'Busy']] as const) {
      const child = named('child', workflow([acquire('Take', { key, ...of(maxHolders, { whenBusy: 'wait', maxWait: 25 }) })], 'Start -> Take -> Work', 'Take:Busy -> Is busy'));
      const flow = workflow([acquire('Acquire', { key, ...of(maxHolders) }), call('Call', 'child')], 'Start -> Acquire -> Call');
      const run = bed.engine.start(flow, { workflows: [child] });
      await run.finished;
      const expected = branch === 'Acquired' ? { acquired: true, holders: 2, maxHolders: 2, freePermits: 0 } : { acquired: false, reason: 'heldByCaller' };
      expect(run.children[0].result.locks('Take', branch)).toMatchObject([expected]);
    }
  });
});

describe.each(engineVersions)('Mode on n8n-core %s', (version) => {
  const sections = useSections(version);
  const { bed } = sections;
  const shared = (parameters: Json = {}) => ({ ...parameters, options: { mode: 'shared', ...(parameters.options as Json) } });
  const waiting = { whenBusy: 'wait', maxWait: 25 };

  it('lets readers in together, a writer alone, and everyone in turn', async () => {
    const key = bed.key();
    const readers = [await sections.hold(key, shared()), await sections.hold(key, shared(), await bed.secondEngine())];
    expect(await sections.statusOf(key)).toMatchObject({ state: 'held', holders: 2, mode: 'shared' });
    expect((await bed.engine.run(sections.section(key))).locks('Acquire', 'Busy')).toMatchObject([{ reason: 'held' }]);

    const writer = bed.engine.start(sections.section(key, waiting));
    await untilWaiting(bed.redis, key, 1);
    const later = [bed.engine.start(sections.section(key, shared(waiting))), bed.engine.start(sections.section(key, shared(waiting)))];
    await untilWaiting(bed.redis, key, 3);
    // Behind a writer that waits, a reader does not enter beside those that read.
    expect((await bed.engine.run(sections.section(key, shared()))).counts('Acquire')).toEqual([0, 1, 0]);

    const read = [await sections.end(readers[0])];
    expect(await lineLength(bed.redis, key)).toBe(3);
    read.push(await sections.end(readers[1]));
    await writer.reached('Work', 'holding');
    expect(await lineLength(bed.redis, key)).toBe(2);
    const status = await sections.statusOf(key);
    expect(status).toMatchObject({ state: 'held', holder: { executionId: writer.executionId } });
    expect(status).not.toHaveProperty('mode');
    const wrote = await sections.end(writer);
    for (const run of later) await run.reached('Work', 'holding');
    expect(await sections.statusOf(key)).toMatchObject({ holders: 2, mode: 'shared', queueLength: 0 });
    for (const run of later) await sections.end(run);

    expect(read.map((result) => result.locks('Acquire', 'Acquired')[0]).map(({ holders, mode, maxHolders }) => [holders, mode, maxHolders])).toEqual([
      [1, 'shared', undefined],
      [2, 'shared', undefined],
    ]);
    expect(wrote.locks('Acquire', 'Acquired')[0]).not.toHaveProperty('mode');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it.each([
    ['exclusive', 'shared', 'Mode (item 0) is Shared, but this execution holds "KEY" exclusively already. Choose Exclusive here too, or release it first.'],
    ['shared', 'exclusive', 'Mode (item 0) is Exclusive, but this execution holds "KEY" shared already. Release it first, or take it exclusively from the start.'],
  ])('of a lock that is held %s does not become %s', async (before, after, message) => {
    for (const operation of ['acquire', 'runWorkflow']) {
      const key = bed.key();
      const parameters = { key, workflowId: 'child', options: { mode: after } };
      const second = operation === 'acquire' ? acquire('Second', parameters) : runWorkflow('Second', parameters);
      const flow = workflow([acquire('First', { key, options: { mode: before, releaseOnEnd: 'never' } }), hold('Work'), second], 'Start -> First -> Work -> Second -> More');
      const run = bed.engine.start(flow, { workflows: [named('child', workflow([], 'Start -> Answer'))] });
      await run.reached('Work', 'holding');
      const stored = await bed.redis.hgetall(`{${key}}:rl:lock`);
      const result = await sections.end(run);
      expect(result.error).toMatchObject({ node: 'Second', itemIndex: 0, message: message.replace('KEY', key) });
      expect(result.ran('More')).toBe(false);
      expect(run.children).toEqual([]);
      expect(await bed.redis.hgetall(`{${key}}:rl:lock`)).toEqual(stored);
    }
  });

  it('may be taken again as it is, in a loop and by another node', async () => {
    const key = bed.key();
    const reader = await sections.hold(key, shared());
    const flow = workflow([acquire('First', { key, ...shared() }), acquire('Second', { key, ...shared() })], 'Start -> First -> Second');
    const result = await bed.engine.run(flow);
    expect(result.locks('Second', 'Acquired')).toMatchObject([{ reentrant: true, holders: 2, mode: 'shared' }]);
    await sections.end(reader);
  });

  it('stays shared through a Wait, also in another process', async () => {
    const key = bed.key();
    const flow = workflow([acquire('Acquire', { key, ...shared() }), replace('Request', {}), wait('Wait'), acquire('Again', { key, ...shared() }), hold('Work')], 'Start -> Acquire -> Request -> Wait -> Again -> Work');
    const suspended = await bed.engine.run(flow);
    const reader = await sections.hold(key, shared());
    const resumed = (await bed.secondEngine()).startResumed(flow, suspended);
    await resumed.reached('Work', 'holding');
    expect(await sections.statusOf(key)).toMatchObject({ holders: 2, mode: 'shared' });
    const result = await sections.end(resumed);
    expect(result.locks('Again', 'Acquired')).toMatchObject([{ reentrant: true, holders: 2, mode: 'shared' }]);
    await sections.end(reader);
  });

  it('is for Run Workflow too', async () => {
    const key = bed.key();
    const child = named('child', workflow([hold('Inside')], 'Start -> Inside'));
    const flow = workflow([runWorkflow('Run', { key, workflowId: 'child', ...shared() })], 'Start -> Run');
    const runs = [1, 2].map(() => bed.engine.start(flow, { workflows: [child] }));
    for (const run of runs) await run.reached('Inside', 'holding');
    expect(await sections.statusOf(key)).toMatchObject({ holders: 2, mode: 'shared' });
    for (const run of runs) await run.letGo('Inside');
    for (const run of runs) expect((await run.finished).locks('Run', 'Done')).toMatchObject([{ acquired: true, released: true }]);
  });

  describe('in a sub-workflow of a caller that reads', () => {
    /** The caller reads, and stops before it calls. */
    async function startCaller(key: string, take: Json) {
      const child = named('child', workflow([acquire('Take', { key, ...take })], 'Start -> Take -> Inside', 'Take:Busy -> Is busy', 'Take:Timed Out -> Is late'));
      const flow = workflow([acquire('Acquire', { key, ...shared() }), hold('Work'), call('Call', 'child')], 'Start -> Acquire -> Work -> Call');
      const run = bed.engine.start(flow, { workflows: [child] });
      await run.reached('Work', 'holding');
      return run;
    }
    const inside = async (run: Run) => {
      await sections.end(run);
      return run.children[0].result;
    };

    it('is another reader', async () => {
      const result = await inside(await startCaller(bed.key(), shared(waiting)));
      expect(result.locks('Take', 'Acquired')).toMatchObject([{ acquired: true, holders: 2, mode: 'shared' }]);
    });

    it('is Busy at once where it wants to write', async () => {
      const result = await inside(await startCaller(bed.key(), waiting));
      expect(result.locks('Take', 'Busy')).toMatchObject([{ acquired: false, reason: 'heldByCaller' }]);
    });

    it('is Busy at once behind a writer, who waits for the caller, who waits for it', async () => {
      const key = bed.key();
      const caller = await startCaller(key, shared(waiting));
      const writer = bed.engine.start(sections.section(key, waiting));
      await untilWaiting(bed.redis, key);
      const result = await inside(caller);
      expect(result.locks('Take', 'Busy')).toMatchObject([{ acquired: false, reason: 'heldByCaller', holder: { executionId: caller.executionId } }]);
      await writer.reached('Work', 'holding');
      await sections.end(writer);
    });

    it('adds a hold to it with Owner: Calling Execution, and is told where the Mode is another', async () => {
      const same = await inside(await startCaller(bed.key(), shared({ options: { owner: 'caller' } })));
      expect(same.locks('Take', 'Acquired')).toMatchObject([{ reentrant: true, holders: 1, mode: 'shared' }]);
      const key = bed.key();
      const other = await inside(await startCaller(key, { options: { owner: 'caller' } }));
      expect(other.error?.message).toBe(`Mode (item 0) is Exclusive, but this execution holds "${key}" shared already. Release it first, or take it exclusively from the start.`);
    });

    it('takes it for a caller that has met no lock, which can take it again', async () => {
      const key = bed.key();
      const child = named('child', workflow([acquire('Take', { key, ...shared({ options: { owner: 'caller' } }) })], 'Start -> Take'));
      const flow = workflow([call('Call', 'child'), acquire('Again', { key, ...shared() })], 'Start -> Call -> Again');
      const reader = await sections.hold(key, shared());
      const result = await bed.engine.run(flow, { workflows: [child] });
      expect(result.errorText).toBe('undefined\n');
      expect(result.locks('Again', 'Acquired')).toMatchObject([{ reentrant: true, holders: 2, mode: 'shared' }]);
      await sections.end(reader);
      await until('all of it to be given back', async () => (await bed.redis.exists(key)) === 0);
    });
  });
});

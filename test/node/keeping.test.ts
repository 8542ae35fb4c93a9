import { until } from '../../scripts/lib/wait';
import { Proxy } from '../engine/support/proxy';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { acquire as outliving, boom, careful, heartbeat, hold, release, wait, workflow } from './harness/workflow';

const { acquire } = careful;

describe.each(engineVersions)('many executions on n8n-core %s', (version) => {
  const bed = useBed(version);

  it('a hundred with Keep Alive cost one round trip for each third of a TTL', async () => {
    const proxy = await Proxy.start(bed.server);
    const renewals: number[] = [];
    proxy.judge = (command) => {
      if (/evalsha|eval/i.test(command) && counting) renewals.push(Date.now());
      return 'pass';
    };
    let counting = false;
    const credentials = { redis: { host: '127.0.0.1', port: proxy.port } };
    const keys = Array.from({ length: 100 }, () => bed.key());
    const start = async (some: string[]) => {
      const started = some.map((key) => bed.engine.start(workflow([acquire('Acquire', { key, ttl: 3 }), hold('Work')], 'Start -> Acquire -> Work'), { credentials }));
      await Promise.all(started.map(async (run) => await run.reached('Work', 'holding')));
      return started;
    };
    const first = await start(keys.slice(0, 50));
    // Not all begin at the same time.
    const between = Date.now();
    await until('half of a third of the TTL', () => Date.now() - between > 500);
    const runs = [...first, ...(await start(keys.slice(50)))];
    counting = true;
    const began = Date.now();
    await until('three thirds of the TTL', () => Date.now() - began > 3200);
    counting = false;
    expect(await bed.redis.exists(...keys)).toBe(100);
    // What was sent in one moment, whatever the number of writes it took: each moment is one round trip.
    const moments = renewals.filter((at, i) => i === 0 || at - renewals[i - 1]! > 200);
    expect(moments.length).toBeGreaterThanOrEqual(3);
    expect(moments.length).toBeLessThanOrEqual(4);
    for (const run of runs) await run.letGo('Work');
    await Promise.all(runs.map(async (run) => await run.finished));
    expect(await bed.redis.exists(...keys)).toBe(0);
    await proxy.stop();
  });

  it('leave nothing behind: no timer, no connection of their own, no handler, none of their data', async () => {
    const items = [{ json: { ballast: 'x'.repeat(20_000) } }];
    const section = (key: string) => workflow([acquire('Acquire', { key, ttl: 30 }), heartbeat('Heartbeat', {})], 'Start -> Acquire -> Heartbeat');
    const some = async (count: number) => {
      for (let i = 0; i < count; i += 20) {
        await Promise.all(Array.from({ length: 20 }, async () => await bed.engine.run(section(bed.key()), { items })));
      }
    };
    await some(200);
    const before = await bed.engine.usage();
    await some(1000);
    const after = await bed.engine.usage();
    expect(after.timers).toBeLessThanOrEqual(before.timers);
    expect(after.sockets).toBeLessThanOrEqual(before.sockets);
    // A thousand times 20 kB of items, were they kept.
    expect(after.heapUsed - before.heapUsed).toBeLessThan(5_000_000);
  }, 120_000);
});

describe.each(engineVersions)('what n8n can’t tell, on n8n-core %s', (version) => {
  const bed = useBed(version);
  const hints = (result: Awaited<ReturnType<typeof bed.engine.run>>) => result.runs('Acquire').flatMap((run) => run.hints.map(({ message }) => message)).join('\n');
  const section = (key: string, options = {}) => workflow([acquire('Acquire', { key, ttl: 50, options })], 'Start -> Acquire -> Work');

  it('without any word of the end of an execution Keep Alive is off, and the node says so', async () => {
    const key = bed.key();
    const result = await bed.engine.run(section(key), { tellsEnd: 'not' });
    expect(hints(result)).toContain('neither kept alive nor released');
    expect(hints(result)).toContain('Heartbeat');
    expect(await bed.redis.pttl(key)).toBeGreaterThan(40_000);
    const [record] = await bed.redis.hvals(`{${key}}:rl:lock`).then((all) => all.filter((text) => text.includes('{')));
    // ends fence ttl since beat renew …
    expect(record!.split(' ')[5]).toBe('0');
  });

  it('with n8n’s official call alone: released at the end, a grace time after a stop', async () => {
    const official = version === '2.41.1';
    const [done, failed, chosen, stopped] = [bed.key(), bed.key(), bed.key(), bed.key()];
    const result = await bed.engine.run(section(done), { tellsEnd: 'officially' });
    await bed.engine.run(workflow([acquire('Acquire', { key: failed, ttl: 50 }), boom('Boom')], 'Start -> Acquire -> Boom'), { tellsEnd: 'officially' });
    // It can't be told from an error.
    const unsure = await bed.engine.run(section(chosen, { releaseOnEnd: 'success' }), { tellsEnd: 'officially' });
    const run = bed.engine.start(workflow([acquire('Acquire', { key: stopped, ttl: 50 }), hold('Work')], 'Start -> Acquire -> Work'), { tellsEnd: 'officially' });
    await run.reached('Work', 'holding');
    run.cancel();
    await run.letGo('Work');
    await run.finished;
    if (official) {
      expect(await bed.redis.exists(done, failed)).toBe(0);
      await until('the grace time', async () => (await bed.redis.pttl(stopped)) <= 30_000);
      expect(hints(unsure)).toContain('not how');
    } else {
      // n8n 1 has no such call.
      expect(hints(result)).toContain('neither kept alive nor released');
      expect(await bed.redis.exists(done, failed, stopped)).toBe(3);
    }
    expect(await bed.redis.pttl(chosen)).toBeGreaterThan(20_000);
  });
});

describe.each(engineVersions)('runs that are not whole, on n8n-core %s', (version) => {
  const bed = useBed(version);

  it('a retry behind the Acquire of an execution that has ended is told that the lock ended with it', async () => {
    const key = bed.key();
    const flow = workflow(
      [acquire('Acquire', { key }), boom('Boom'), heartbeat('Heartbeat', {}), release('Release', {})],
      'Start -> Acquire -> Boom -> Heartbeat:Lost -> Release',
    );
    const failed = await bed.engine.run(flow);
    expect(await bed.redis.exists(key)).toBe(0);
    const retried = await bed.engine.retry(flow, failed);
    expect(retried.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, key, reason: 'endedWithExecution' }]);
    expect(retried.locks('Release', 'Not Held')).toMatchObject([{ released: false, key, reason: 'endedWithExecution', overlapped: false }]);
  });

  it('a retry of one that kept the lock goes on with it as its own, and releases it at its end', async () => {
    const key = bed.key();
    const options = { releaseOnEnd: 'success' };
    const flow = workflow([acquire('Acquire', { key, options }), boom('Boom'), heartbeat('Heartbeat', {}), hold('Work')], 'Start -> Acquire -> Boom -> Heartbeat -> Work');
    const failed = await bed.engine.run(flow);
    const first = Number(await bed.redis.get(key));
    const run = bed.engine.startRetry(flow, failed);
    await run.reached('Work', 'holding');
    expect(Number(await bed.redis.get(key))).toBeGreaterThan(first);
    // The error workflow of the first one, late, frees nothing.
    const late = await bed.engine.run(workflow([release('Release', { target: 'otherExecution', executionId: failed.executionId })], 'Start -> Release'));
    expect(late.locks('Release', 'Released')).toMatchObject([{ released: true, alreadyReleased: true, keys: [] }]);
    await run.letGo('Work');
    const retried = await run.finished;
    expect(retried.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key }]);
    expect(retried.executionId).not.toBe(failed.executionId);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('an error workflow frees what the failed execution held, any number of times, and what it had retried', async () => {
    const keys = [bed.key(), bed.key()];
    const held = async (key: string) => await bed.engine.run(workflow([outliving('Acquire', { key: `={{ "${key}" }}` }), boom('Boom')], 'Start -> Acquire -> Boom'));
    const [retried, failed] = [await held(keys[0]), await held(keys[1])];
    const clean = workflow([release('Release', { target: 'otherExecution', executionId: '={{ $json.execution.id }}' })], 'Start -> Release');
    const items = [{ json: { execution: { id: failed.executionId, retryOf: retried.executionId } } }];
    const first = await bed.engine.run(clean, { items });
    expect(first.locks('Release', 'Released')).toMatchObject([{ released: true, ofExecution: failed.executionId, keys: expect.arrayContaining(keys) }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
    const again = await bed.engine.run(clean, { items });
    expect(again.locks('Release', 'Released')).toEqual([{ released: true, ofExecution: failed.executionId, keys: [], alreadyReleased: true }]);
  });

  it('a holder that is alive after its locks were freed that way is told Lost', async () => {
    const key = bed.key();
    const flow = workflow(
      [acquire('Acquire', { key }), hold('Work'), heartbeat('Heartbeat', {}), release('Release', {})],
      'Start -> Acquire -> Work -> Heartbeat:Lost -> Release',
    );
    const run = bed.engine.start(flow);
    await run.reached('Work', 'holding');
    await bed.engine.run(workflow([release('Release', { target: 'otherExecution', executionId: run.executionId })], 'Start -> Release'));
    const other = await bed.engine.run(workflow([outliving('Other', { key })], 'Start -> Other'));
    await run.letGo('Work');
    const result = await run.finished;
    expect(result.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, reason: 'freed' }]);
    expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, reason: 'freed', overlapped: true, holder: { executionId: other.executionId } }]);
  });

  it('Retry on Fail of a node behind Acquire leaves the lock alone', async () => {
    const key = bed.key();
    const result = await bed.engine.run(
      workflow([acquire('Acquire', { key }), boom('Boom', { retryOnFail: true, maxTries: 2, waitBetweenTries: 1 }), release('Release', {})], 'Start -> Acquire -> Boom -> Release'),
    );
    expect(result.status).toBe('error');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('a disabled Acquire lets its items through, and Release says that nothing was held', async () => {
    const key = bed.key();
    const result = await bed.engine.run(workflow([acquire('Acquire', { key }, { disabled: true }), release('Release', {})], 'Start -> Acquire -> Release'));
    expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, reason: 'nothingHeld' }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('an execution of the Acquire step alone gives the lock back at once, and says so', async () => {
    const key = bed.key();
    const flow = workflow([acquire('Acquire', { key })], 'Start -> Acquire -> Work');
    const result = await bed.engine.run(flow, { mode: 'manual', destinationNode: 'Acquire' });
    expect(result.counts('Acquire')).toEqual([1, 0, 0]);
    expect(result.ran('Work')).toBe(false);
    expect(result.runs('Acquire')[0].hints.map(({ message }) => message)).toEqual([
      'The execution of this step ends here, so the lock is given back at once. To see it held, execute the whole workflow.',
    ]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('items of a step that was executed before, or that are pinned to Acquire, go on without the lock, and are told', async () => {
    const key = bed.key();
    const flow = workflow([acquire('Acquire', { key }), heartbeat('Heartbeat', {}), release('Release', {})], 'Start -> Acquire -> Heartbeat', 'Heartbeat:Lost -> Release');
    const earlier = await bed.engine.run(flow, { mode: 'manual', destinationNode: 'Acquire' });
    const [item] = earlier.items('Acquire', 'Acquired');
    const result = await bed.engine.run(flow, { mode: 'manual', pinData: { Acquire: [{ json: item.json }] } });
    expect(result.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, reason: 'notHeld', key }]);
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, alreadyReleased: true }]);
    const strange = await bed.engine.run(flow, { mode: 'manual', pinData: { Acquire: [{ json: {} }] } });
    expect(strange.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, reason: 'nothingHeld' }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('warns of a Wait with no lock node behind it', async () => {
    const told = async (more: Parameters<typeof workflow>[0] = [], take = acquire, options = {}) => {
      const flow = workflow([take('Acquire', { key: bed.key(), options }), { ...wait('Pause'), type: 'n8n-nodes-base.wait' }, ...more], ['Start -> Acquire -> Pause', ...more.map(({ name }) => name)].join(' -> '));
      return (await bed.engine.run(flow)).runs('Acquire')[0].hints.map(({ message }) => message).join();
    };
    const says = 'No Redis Lock node follows "Pause": after that Wait nothing keeps the lock alive or releases it, and it ends by its TTL';
    const remedy = 'Put a Heartbeat or a Release behind it.';
    expect(await told()).toBe(`${says}. ${remedy}`);
    expect(await told([release('Release', {})])).toBe('');
    expect(await told([], acquire, { keepAlive: false })).toBe('');
    // What is to be done once needs the end of the execution for its mark, kept alive or not.
    for (const keepAlive of [true, false]) {
      expect(await told([], careful.acquireOnce, { keepAlive })).toBe(`${says}, with nothing remembered as done. ${remedy}`);
      expect(await told([release('Release', {})], careful.acquireOnce, { keepAlive })).toBe('');
    }
  });
});

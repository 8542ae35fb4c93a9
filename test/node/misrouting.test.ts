import { startRedis } from '../../scripts/lib/redis';
import { useBed } from './harness/bed';
import { engineVersions, type RedisCredential, type Run } from './harness/engine';
import { heldToken } from './harness/look';
import {
  acquire,
  acquireOnce,
  careful,
  heartbeat,
  hold,
  release,
  runWorkflow,
  steal,
  workflow,
  type Json,
  type NodeSettings,
  type WorkflowNode,
} from './harness/workflow';

/*
 * The first output is where n8n connects the next node, and where n8n itself sends items when a node fails under
 * "Continue" or when "Always Output Data" is on. So: every setting of a node times every way to fail, and nothing
 * ever leaves through the first output without a held lock.
 */

const SECRET = 'not-the-right-password';

type Settings = Pick<NodeSettings, 'onError' | 'alwaysOutputData' | 'retryOnFail' | 'executeOnce' | 'continueOnFail'>;

const onOff = [false, true];
const allSettings: Settings[] = [
  ...(['stopWorkflow', 'continueRegularOutput', 'continueErrorOutput'] as const).flatMap((onError) =>
    onOff.flatMap((alwaysOutputData) =>
      onOff.flatMap((retryOnFail) =>
        onOff.map((executeOnce) => ({ onError, alwaysOutputData, retryOnFail, executeOnce })),
      ),
    ),
  ),
  // What workflows have that were saved before there was `onError`.
  ...onOff.map((alwaysOutputData) => ({ continueOnFail: true, alwaysOutputData })),
];

function title({ onError, ...rest }: Settings) {
  const on = Object.entries(rest).filter(([, value]) => value);
  return [onError, ...on.map(([name]) => name)].filter(Boolean).join(' + ');
}

type Make = (name: string, parameters: Json, settings: NodeSettings) => WorkflowNode;

interface Case {
  title: string;
  make: Make;
  /** Of the node; the key of each item is in `$json.key`. */
  parameters: Json;
  /** `down`: nothing listens there. `denied`: wrong password. `doomed`: a Redis that is killed before the node runs. */
  credential?: 'down' | 'denied' | 'doomed' | 'missing';
  /** Somebody else holds the keys. */
  busy?: boolean;
  /** What the keys stand for was done by somebody else. */
  done?: boolean;
  /** The execution itself took the keys before. */
  held?: boolean;
  /** Somebody deletes the keys before the node runs. */
  deleted?: boolean;
  /** What the error says; absent where it is an outcome and no error. */
  says?: RegExp;
}

const key = '={{ $json.key }}';
const empty = '={{ "" }}';
const own = { target: 'key', key };
const atOnce = { key, whenBusy: 'wait', maxWait: 0, options: { onTimeout: 'error' } };
const runs = { workflowId: 'none', runOnce: 'each' };
const server = /127\.0\.0\.1:\d+/;

const cases: Case[] = [
  { title: 'Acquire: bad key', make: acquire, parameters: { key: empty }, says: /\bKey\b/ },
  {
    title: 'Acquire: expression that fails',
    make: acquire,
    parameters: { key: '={{ $("Nobody").first().json }}' },
    says: /\bKey\b/,
  },
  { title: 'Acquire: Redis down', make: acquire, parameters: { key }, credential: 'down', says: server },
  { title: 'Acquire: wrong password', make: acquire, parameters: { key }, credential: 'denied', says: server },
  { title: 'Acquire: no such credential', make: acquire, parameters: { key }, credential: 'missing', says: /missing/ },
  { title: 'Acquire: busy', make: acquire, parameters: { key }, busy: true },
  { title: 'Acquire: time-out is an error', make: acquire, parameters: atOnce, busy: true, says: /test:lock:/ },
  { title: 'Acquire: bad key in a list', make: acquire, parameters: { key: '={{ [$json.key, ""] }}' }, says: /\bKey\b/ },
  { title: 'Acquire Once: bad key', make: acquireOnce, parameters: { key: empty }, says: /\bKey\b/ },
  { title: 'Acquire Once: Redis down', make: acquireOnce, parameters: { key }, credential: 'down', says: server },
  { title: 'Acquire Once: wrong password', make: acquireOnce, parameters: { key }, credential: 'denied', says: server },
  { title: 'Acquire Once: no such credential', make: acquireOnce, parameters: { key }, credential: 'missing', says: /missing/ },
  { title: 'Acquire Once: busy', make: acquireOnce, parameters: { key }, busy: true },
  { title: 'Acquire Once: done before', make: acquireOnce, parameters: { key }, done: true },
  { title: 'Acquire Once: time-out is an error', make: acquireOnce, parameters: atOnce, busy: true, says: /test:lock:/ },
  { title: 'Heartbeat: bad target', make: heartbeat, parameters: { target: 'key', key: empty }, says: /\bKey\b/ },
  { title: 'Heartbeat: Redis down', make: heartbeat, parameters: own, credential: 'doomed', held: true, says: server },
  {
    title: 'Heartbeat: wrong password',
    make: heartbeat,
    parameters: own,
    credential: 'denied',
    held: true,
    says: server,
  },
  { title: 'Heartbeat: lost', make: heartbeat, parameters: own, held: true, deleted: true },
  { title: 'Heartbeat: nothing held', make: heartbeat, parameters: {} },
  { title: 'Release: bad target', make: release, parameters: { target: 'lockId', lockId: empty }, says: /\bLock ID\b/ },
  { title: 'Release: Redis down', make: release, parameters: own, credential: 'doomed', held: true, says: server },
  { title: 'Release: wrong password', make: release, parameters: own, credential: 'denied', held: true, says: server },
  { title: 'Release: not held', make: release, parameters: own, held: true, deleted: true },
  { title: 'Release: nothing held', make: release, parameters: {} },
  { title: 'Run Workflow: bad key', make: runWorkflow, parameters: { ...runs, key: empty }, says: /\bKey\b/ },
  { title: 'Run Workflow: Redis down', make: runWorkflow, parameters: { ...runs, key }, credential: 'down', says: server },
  { title: 'Run Workflow: wrong password', make: runWorkflow, parameters: { ...runs, key }, credential: 'denied', says: server },
  { title: 'Run Workflow: busy', make: runWorkflow, parameters: { ...runs, key }, busy: true },
  { title: 'Run Workflow: time-out is an error', make: runWorkflow, parameters: { ...runs, ...atOnce }, busy: true, says: /test:lock:/ },
  { title: 'Run Workflow: the workflow fails', make: runWorkflow, parameters: { ...runs, key }, says: /does not exist/ },
  { title: 'Steal: bad key', make: steal, parameters: { key: empty }, says: /\bKey\b/ },
  { title: 'Steal: Redis down', make: steal, parameters: { key }, credential: 'down', says: server },
  { title: 'Steal: wrong password', make: steal, parameters: { key }, credential: 'denied', says: server },
  { title: 'Steal: not stale', make: steal, parameters: { key }, busy: true },
];

describe.each(engineVersions)('misrouting on n8n-core %s', (version) => {
  const bed = useBed(version);
  let credentials: Record<string, RedisCredential>;
  let slow: Map<Case, Promise<Map<Settings, Run>>>;

  beforeAll(async () => {
    await bed.redis.acl('SETUSER', 'denied', 'on', '>the-right-password', '~*', '&*', '+@all');
    credentials = {
      down: { host: '127.0.0.1', port: 1 },
      denied: { ...bed.credential, user: 'denied', password: SECRET },
    };
    // A Redis that does not answer takes its time: all of these begin now, and are looked at later.
    // First those that take their locks before: hundreds that try to connect would keep them from it.
    slow = new Map();
    for (const first of [true, false]) {
      const some = cases.filter(({ says, held }) => says === server && (held === true) === first);
      for (const each of some) slow.set(each, startAll(each));
      await Promise.all(some.map((each) => slow.get(each)));
    }
  });

  /** Starts the node on two items with a key of their own each; returns when what comes before it has been done. */
  async function startCase(
    { make, parameters, credential, busy, done, held }: Case,
    settings: Settings,
    doomed?: RedisCredential,
  ) {
    const keys = [bed.key(), bed.key()];
    const options = {
      items: keys.map((each, n) => ({ json: { key: each, n } })),
      credentials: { ...credentials, ...(doomed && { doomed }) },
    };
    const node = make('Lock', parameters, { ...settings, maxTries: 2, waitBetweenTries: 1, credential });

    if (busy) await bed.engine.run(workflow([acquire('Other', { key })], 'Start -> Other'), options);
    if (done) await bed.engine.run(workflow([careful.acquireOnce('Other', { key })], 'Start -> Other'), options);
    if (!held) return { keys, run: bed.engine.start(workflow([node], 'Start -> Lock -> Critical section'), options) };

    const first = acquire('Acquire', { key }, { credential: credential === 'doomed' ? 'doomed' : 'redis' });
    const run = bed.engine.start(
      workflow([first, hold('Hold'), node], 'Start -> Acquire -> Hold -> Lock -> Critical section'),
      options,
    );
    await run.reached('Hold', 'holding');
    return { keys, run };
  }

  /** Starts the case under all settings at the same time. */
  async function startAll(each: Case): Promise<Map<Settings, Run>> {
    const doomed = each.credential === 'doomed' ? await startRedis() : undefined;
    const started = await Promise.all(allSettings.map(async (settings) => await startCase(each, settings, doomed)));
    await doomed?.kill();
    if (each.deleted) await bed.redis.del(...started.flatMap(({ keys }) => keys));
    if (each.held) await Promise.all(started.map(async ({ run }) => await run.letGo('Hold')));
    return new Map(started.map(({ run }, i) => [allSettings[i], run]));
  }

  describe.each(cases)('$title', (each) => {
    let runs: Map<Settings, Run>;

    beforeAll(async () => {
      runs = await (slow.get(each) ?? startAll(each));
    });

    it.each(allSettings.map((settings) => [title(settings), settings] as const))('%s', async (_title, settings) => {
      const result = await runs.get(settings)!.finished;
      const count = settings.executeOnce ? 1 : 2;
      const ownOutputs = each.make === acquireOnce ? 4 : each.make === acquire || each.make === runWorkflow ? 3 : 2;

      expect(result.ran('Critical section')).toBe(false);
      expect(result.counts('Lock')[0] ?? 0).toBe(0);
      expect(result.changedNodes).toEqual([]);
      expect(result.data).not.toContain(SECRET);

      if (each.says && settings.onError === 'stopWorkflow') {
        expect(result.status).toBe('error');
        expect(result.error?.node).toBe('Lock');
        expect(result.error?.message).toMatch(each.says);
        return;
      }
      const counts = Array<number>(ownOutputs + (settings.onError === 'continueErrorOutput' ? 1 : 0)).fill(0);
      counts[each.says && settings.onError === 'continueErrorOutput' ? ownOutputs : each.done ? 3 : 1] = count;
      expect(result.status).toBe('success');
      expect(result.counts('Lock')).toEqual(counts);

      const items = result.runs('Lock')[0].outputs.flatMap((output) => output ?? []);
      expect(items.map(({ json }) => json.n)).toEqual([0, 1].slice(0, count));
      for (const { json } of items) {
        if (each.says) expect(json.error).toMatch(each.says);
        else expect(json).not.toHaveProperty('error');
      }
    });
  });

  describe.each([
    ['Acquire', acquire],
    ['Acquire Once', acquireOnce],
  ])('%s: success', (_operation, make) => {
    it.each(allSettings.map((settings) => [title(settings), settings] as const))('%s', async (_title, settings) => {
      const { run } = await startCase({ title: '', make, parameters: { key } }, settings);
      const result = await run.finished;
      const count = settings.executeOnce ? 1 : 2;

      expect(result.status).toBe('success');
      expect(result.changedNodes).toEqual([]);
      expect(result.counts('Critical section')).toEqual([count]);
      const locks = result.locks('Lock', 'Acquired');
      expect(locks).toHaveLength(count);
      for (const lock of locks) {
        expect(lock.acquired).toBe(true);
        expect(await heldToken(bed.redis, lock.key as string)).toBe(lock.fencingToken);
      }
    });
  });

  it.each(['continueRegularOutput', 'continueErrorOutput'] as const)(
    'one bad item among good ones, under %s',
    async (onError) => {
      const good = [bed.key(), bed.key()];
      const items = [good[0], 'job:undefined', good[1]].map((each, n) => ({ json: { key: each, n } }));
      const result = await bed.engine.run(workflow([acquire('Lock', { key }, { onError })], 'Start -> Lock'), {
        items,
      });

      const side = onError === 'continueErrorOutput' ? 'Error' : 'Busy';
      expect(result.items('Lock', 'Acquired').map(({ json }) => json.n)).toEqual([0, 2]);
      expect(result.items('Lock', side)).toMatchObject([{ json: { n: 1, error: expect.stringContaining('Key') } }]);
      expect(result.items('Lock', side)[0].pairedItem).toEqual({ item: 1 });
    },
  );
});

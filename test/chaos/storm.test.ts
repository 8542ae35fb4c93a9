import { useBed } from '../engine/support/bed';
import { until } from '../engine/support/until';
import { History, type Verdict } from './support/history';
import { storm, type Job, type StormOptions } from './support/storm';

const SEED = Number(process.env.CHAOS_SEED ?? Date.now() % 2 ** 31);
const SECTIONS = Number(process.env.CHAOS_SECTIONS ?? 10_000);
const PROCESSES = 8;
const TTL_MS = 1500;
const WAIT_MS = 20_000;
/**
 * Somebody frozen or dead holds the line up for at most 5 s (several one after the other for 3 s each, or a lease);
 * half a second more for a machine at its limit.
 */
const LONGEST_GAP_MS = 5500;
const IN_TURN: Job[] = [
  { kind: 'turn', key: 'storm:a' },
  { kind: 'turn', key: 'storm:b' },
  { kind: 'turn', key: 'storm:c' },
  { kind: 'turn', key: 'storm:three', limit: 3 },
];
const OF_ALL_KINDS: Job[] = [
  { kind: 'shared', key: 'storm:read:a' },
  { kind: 'shared', key: 'storm:read:b' },
  { kind: 'once', key: 'storm:event' },
  { kind: 'newest', key: 'storm:newest:a' },
  { kind: 'newest', key: 'storm:newest:b' },
  { kind: 'list', keys: ['storm:1', 'storm:2', 'storm:3', 'storm:4'] },
];

/** Tasks in 8 processes take locks and write down what they saw. Nobody but the locks protects the files that they change. */
describe('a storm', () => {
  const bed = useBed();

  const weather = async (name: string, options: Pick<StormOptions, 'sections' | 'report' | 'tasks' | 'jobs' | 'calmMs'>): Promise<Verdict> => {
    const { notes, tookMs, kills, pauses, subscriptions } = await storm(bed, { ...options, seed: SEED, processes: PROCESSES, ttlMs: TTL_MS, waitMs: WAIT_MS });
    const verdict = new History(notes, TTL_MS).check(LONGEST_GAP_MS);
    process.stdout.write(
      `${name}: seed ${SEED}, ${(tookMs / 1000).toFixed(1)} s, ${kills} kills, ${pauses} pauses, ${JSON.stringify({ ...verdict, faults: verdict.faults.length })}\n`,
    );
    expect(verdict.faults).toEqual([]);
    expect(verdict.sections).toBeGreaterThanOrEqual(options.sections * 0.95);
    expect(subscriptions).toBeLessThanOrEqual(PROCESSES + 1);
    return verdict;
  };

  it(`F2, F7, F25: of ${SECTIONS} critical sections leaves a history without fault`, async () => {
    const { updatesChecked } = await weather('storm', { sections: SECTIONS, report: 20, tasks: 16, jobs: IN_TURN, calmMs: 1000 });
    expect(updatesChecked).toBeGreaterThan(SECTIONS / 2);

    // What is left is the line with the dead in it, until their deadlines.
    await until(async () => (await bed.redis.keys('*')).every((key) => /:rl:(line|wait)$/.test(key)), 10_000);
    for (const key of await bed.redis.keys('*')) expect(await bed.redis.pttl(key)).toBeLessThan(WAIT_MS + 125_000);
    expect(await bed.redis.pubsub('CHANNELS', '*')).toEqual([]);
  }, 180_000);

  it('of readers and writers, of events that are done once, of the newest only and of several keys leaves a history without fault', async () => {
    const sections = Math.ceil(SECTIONS / 5);
    const { kinds, superseded, doneBefore } = await weather('storm of all kinds', { sections, report: 5, tasks: 12, jobs: OF_ALL_KINDS, calmMs: 300 });
    // There was enough of each.
    for (const count of [kinds.shared, kinds.turn, kinds.once, kinds.newest, kinds.list, superseded, doneBefore]) expect(count).toBeGreaterThan(sections / 50);
  }, 180_000);
});

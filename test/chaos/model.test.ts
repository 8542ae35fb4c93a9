import fc from 'fast-check';
import { Model, SHARED } from './support/model';
import type { Step } from './support/step';
import { steps, type Mix } from './support/steps';
import { World } from './support/world';

const SEED = Number(process.env.CHAOS_SEED ?? Date.now() % 2 ** 31);
const RUNS = Number(process.env.CHAOS_RUNS ?? 3000);
/** Nothing in a run waits, and the soonest timer of a waiter is due after 3 s. A run that is slower than this is cut short. */
const LONGEST_MS = 2500;

/**
 * Random steps of several processes on a real Redis, each compared with a model that has neither Redis nor time.
 * A failure is shrunk to the shortest run that still fails; CHAOS_SEED repeats it.
 */
describe('the lock and its model agree', () => {
  let world: World;
  const counts = { runs: 0, steps: 0, restarts: 0, cut: 0 };

  beforeAll(async () => {
    world = await World.start();
  });

  afterAll(async () => {
    await world.stop();
    process.stdout.write(`model: seed ${SEED}, ${counts.runs} runs of ${counts.steps} steps, ${counts.restarts} restarts, ${counts.cut} cut short\n`);
  });

  /** @param share of all runs */
  const agree = async (mix: Mix, share: number) => {
    const property = fc.asyncProperty(fc.array(steps(mix), { minLength: 1, maxLength: 25, size: 'max' }), async (run) => {
      const model = new Model();
      await world.begin();
      const started = performance.now();
      counts.runs += 1;
      try {
        for (const { text, run: happen } of run) {
          if (performance.now() - started > LONGEST_MS) {
            counts.cut += 1;
            return;
          }
          counts.steps += 1;
          if (text.includes('restarted')) counts.restarts += 1;
          try {
            await happen(model, world);
            await world.settle(model);
            // Nobody is made one of more holders than it asked for.
            const fewest = Math.min(...model.living.map(({ limit }) => limit));
            if (model.living.length > fewest) throw new Error(`${model.living.length} holders, of which one allows ${fewest}`);
          } catch (error) {
            await Promise.reject(new Error(`at "${text}": ${error instanceof Error ? error.message : String(error)}`));
          }
        }
      } finally {
        await world.end();
      }
    });
    await fc.assert(property, { numRuns: Math.ceil(RUNS * share), seed: SEED, endOnFailure: false, reporter: report });
  };

  it.each<[string, Mix, number]>([
    ['a mutex', { limits: fc.constant(1), lists: true }, 0.2],
    ['a semaphore of 2', { limits: fc.constant(2) }, 0.15],
    ['a semaphore of 3', { limits: fc.constant(3) }, 0.05],
    ['callers who ask for different limits', { limits: fc.constantFrom(1, 2, 3) }, 0.1],
    ['readers and writers', { limits: fc.constantFrom(1, SHARED, SHARED), otherLimits: fc.constantFrom(0, 1, SHARED) }, 0.1],
    ['once', { limits: fc.constant(1), once: true }, 0.1],
    ['only the newest', { limits: fc.constant(1), newest: true }, 0.1],
    ['everything mixed', { limits: fc.constantFrom(1, 1, 2, SHARED), otherLimits: fc.constantFrom(0, 0, 1, SHARED), lists: true, once: true, newest: true }, 0.2],
  ])('for %s', (_, mix, share) => agree(mix, share), 600_000);
});

/** The shortest failing run, a step a line. */
function report(details: fc.RunDetails<[Step[]]>): void {
  if (!details.failed) return;
  const run = details.counterexample?.[0].map(({ text }) => `  ${text}`).join('\n');
  throw new Error(`seed ${details.seed}, after ${details.numRuns} runs and ${details.numShrinks} shrinks:\n${run}\n${String(details.errorInstance)}`);
}

import fc from 'fast-check';
import { Model } from './support/model';
import { steps, type Step } from './support/steps';
import { World } from './support/world';

const SEED = Number(process.env.CHAOS_SEED ?? Date.now() % 2 ** 31);
const RUNS = Number(process.env.CHAOS_RUNS ?? 2000);
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

  /** @param limited no more than so many may hold it */
  const agree = async (limits: fc.Arbitrary<number>, runs: number, limited: number) => {
    const property = fc.asyncProperty(fc.array(steps(limits), { minLength: 1, maxLength: 25, size: 'max' }), async (run) => {
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
            if (model.living.length > limited) throw new Error(`${model.living.length} holders`);
          } catch (error) {
            await Promise.reject(new Error(`at "${text}": ${error instanceof Error ? error.message : String(error)}`));
          }
        }
      } finally {
        await world.end();
      }
    });
    await fc.assert(property, { numRuns: runs, seed: SEED, endOnFailure: false, reporter: report });
  };

  it('for a mutex', () => agree(fc.constant(1), Math.ceil(RUNS * 0.4), 1), 600_000);
  it('for a semaphore of 2', () => agree(fc.constant(2), Math.ceil(RUNS * 0.3), 2), 600_000);
  it('for a semaphore of 3', () => agree(fc.constant(3), Math.ceil(RUNS * 0.15), 3), 600_000);
  it('for callers who ask for different limits', () => agree(fc.constantFrom(1, 2, 3), Math.ceil(RUNS * 0.15), 3), 600_000);
});

/** The shortest failing run, a step a line. */
function report(details: fc.RunDetails<[Step[]]>): void {
  if (!details.failed) return;
  const run = details.counterexample?.[0].map(({ text }) => `  ${text}`).join('\n');
  throw new Error(`seed ${details.seed}, after ${details.numRuns} runs and ${details.numShrinks} shrinks:\n${run}\n${String(details.errorInstance)}`);
}

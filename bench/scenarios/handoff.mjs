import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { now } from '../lib/clock.mjs';
import { startWorker } from '../lib/fleet.mjs';
import { counters } from '../lib/server.mjs';
import { inversionShare, max, mean, median, quantile } from '../lib/stats.mjs';

export const title = 'Contended hand-off';
const STAGGER_MS = 2;
const WAIT_MS = 60000;

export function variants({ quick }) {
  const list = [];
  for (const waiters of [2, 16, 128])
    for (const processes of quick ? [4] : [1, 4])
      for (const csMs of quick ? [1] : [1, 10]) list.push({ waiters, processes: Math.min(processes, waiters), csMs });
  return list.filter((v, i) => list.findIndex((w) => JSON.stringify(w) === JSON.stringify(v)) === i);
}

export const applies = (adapter, { waiters }) =>
  adapter.traits.waits !== false && waiters <= (adapter.traits.maxWaiters ?? Infinity);

/** Repeats of one variant, for steadier figures where few waiters give few samples. */
const laps = (adapter, waiters) => (adapter.traits.slowPath ? 1 : Math.max(1, Math.ceil(16 / waiters)));

/**
 * A gate holder keeps the lock while all waiters arrive 2 ms apart, so that the order of arrival is
 * known; then the gate opens and every waiter passes once. A hand-off is timed from the moment one
 * holder begins its release to the moment the next one's acquire has returned.
 */
export async function run({ adapter, server, variant }) {
  const { waiters, processes } = variant;
  const folder = mkdtempSync(join(tmpdir(), 'lock-bench-'));
  const workers = await Promise.all(
    Array.from({ length: processes + 1 }, () => startWorker(adapter.module, server.url)),
  );
  try {
    if (!adapter.traits.slowPath)
      for (const worker of workers) await worker.call('sequential', { count: 200, warmup: 0, ttl: 30000 });
    const results = [];
    for (let lap = 0; lap < laps(adapter, waiters); lap += 1)
      results.push(await lapOf(workers, server, variant, join(folder, `counter-${lap}`), `handoff:${lap}`));
    return summary(results);
  } finally {
    await Promise.all(workers.map((worker) => worker.stop()));
    rmSync(folder, { recursive: true });
  }
}

async function lapOf([gateKeeper, ...fleet], server, { waiters, csMs }, file, key) {
  writeFileSync(file, '0');
  await gateKeeper.call('holdGate', { key, ttl: 30000 });
  const before = await counters(server.control);
  const start = now() + 60;
  const arrivals = Array.from({ length: waiters }, (_, id) => ({ id, at: start + id * STAGGER_MS }));
  const [{ start: opened }, ...parts] = await Promise.all([
    gateKeeper.call('releaseGateAt', { key, at: start + waiters * STAGGER_MS + 100 }),
    ...fleet.map((worker, index) =>
      worker.call('contend', {
        key,
        ttl: 30000,
        waitMs: WAIT_MS,
        csMs,
        file,
        arrivals: arrivals.filter(({ id }) => id % fleet.length === index),
      }),
    ),
  ]);
  const after = await counters(server.control);
  const passes = parts.flatMap((part) => part.passes).sort((a, b) => a.enter - b.enter);
  const gaps = passes.map((pass, i) => pass.enter - (i === 0 ? opened : passes[i - 1].leave));
  const waits = passes.map((pass) => pass.enter - Math.max(pass.arrive, opened));
  return {
    gaps,
    passed: passes.length ? max(passes.map((pass) => pass.done)) - opened : null,
    inversions: 100 * inversionShare(passes, 1),
    unevenness: passes.length ? max(waits) / mean(waits) : null,
    commands: (after.total - before.total) / Math.max(1, passes.length),
    scripts: (after.scripts - before.scripts) / Math.max(1, passes.length),
    missing: waiters - passes.length,
    violations: gaps.filter((gap) => gap < 0).length,
    lost: passes.length - Number(readFileSync(file, 'utf8')),
    errors: [
      ...parts.flatMap((part) => part.failures.map((failure) => failure.error)),
      ...parts.flatMap((part) => part.rejections),
    ],
  };
}

function summary(results) {
  const gaps = results.flatMap((lap) => lap.gaps);
  const over = (field) => results.map((lap) => lap[field]);
  const total = (field) => over(field).reduce((a, b) => a + b, 0);
  return {
    'hand-off median ms': median(gaps),
    'hand-off p99 ms': quantile(gaps, 0.99),
    'hand-off max ms': max(gaps),
    'all passed ms': median(over('passed')),
    'inversions %': mean(over('inversions')),
    'max/mean wait': median(over('unevenness')),
    'commands/acquire': mean(over('commands')),
    'scripts/acquire': mean(over('scripts')),
    'not served': total('missing'),
    violations: total('violations'),
    'lost updates': total('lost'),
    notes: [...new Set(results.flatMap((lap) => lap.errors))].slice(0, 3).join('; '),
  };
}

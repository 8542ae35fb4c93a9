import { setTimeout as delay } from 'node:timers/promises';

/** Asks again and again until `probe` gives something truthy, and returns that. Throws at the limit. */
export async function until<T>(probe: () => T | Promise<T>, limitMs = 5000, everyMs = 5): Promise<NonNullable<T>> {
  const limit = performance.now() + limitMs;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (performance.now() > limit) throw new Error(`Waited ${limitMs} ms in vain for: ${probe.toString()}`);
    await delay(everyMs);
  }
}

/** How long a promise took, in ms, and what came of it. */
export async function timed<T>(work: Promise<T>): Promise<{ ms: number; value?: T; error?: Error & { code?: string } }> {
  const started = performance.now();
  const settled = await work.then(
    (value) => ({ value }),
    (error: Error) => ({ error }),
  );
  return { ms: performance.now() - started, ...settled };
}

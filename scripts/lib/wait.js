'use strict';

// The one way to wait here: ask again and again until it is so, or until a limit. A fixed sleep is either
// too short on a busy machine or too long on an idle one.

const { setTimeout: delay } = require('node:timers/promises');

/**
 * Polls until `probe` gives something truthy, and returns that.
 *
 * @template T
 * @param {string} what what is awaited, for the error message
 * @param {() => T | Promise<T>} probe asked again and again; what it throws counts as "not yet"
 * @param {{ timeoutMs?: number, everyMs?: number }} [options] limit (default 30 s), pause between two probes (default 50 ms)
 * @returns {Promise<NonNullable<T>>}
 * @throws {Error} at the limit, naming `what` and the last thing the probe threw or gave
 */
async function until(what, probe, { timeoutMs = 30_000, everyMs = 50 } = {}) {
  const limit = Date.now() + timeoutMs;
  let last;
  for (;;) {
    try {
      const value = await probe();
      if (value) return value;
      last = value;
    } catch (error) {
      if (error instanceof GiveUp) throw error;
      last = error;
    }
    if (Date.now() >= limit) break;
    await delay(everyMs);
  }
  const seen = last instanceof Error ? last.message : JSON.stringify(last);
  throw new Error(`Waited ${timeoutMs} ms for: ${what}. Last seen: ${seen}`);
}

/** Thrown by a probe when waiting longer is pointless (the process it waits for has ended). */
class GiveUp extends Error {}

module.exports = { until, GiveUp };

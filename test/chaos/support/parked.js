'use strict';

// A process with many callers that wait in line. Prints what the test asks for, a line of JSON each, and goes on when
// its standard input ends.

const { once, getEventListeners, setMaxListeners } = require('node:events');
const { engine, url, waiters, keys } = JSON.parse(process.argv[2]);
const { createLocks } = require(engine);
const Redis = require('ioredis');

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const clean = () => {
  for (let i = 0; i < 4; i++) global.gc();
  return process.memoryUsage().heapUsed;
};
/** Until that many are in line, by what Redis says. */
async function inLine(locks, count) {
  for (;;) {
    const states = await Promise.all(Array.from({ length: keys }, (_, i) => locks.status(`parked:${i}`)));
    if (states.reduce((sum, { queue }) => sum + queue, 0) === count) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function main() {
  const redis = new Redis(url);
  await once(redis, 'ready');
  const listeners = () => redis.eventNames().map((name) => `${String(name)} ${redis.listenerCount(name)}`).sort().join();
  const before = listeners();
  const locks = createLocks({ redis }, { fencingRetentionMs: 1000 });
  const stop = new AbortController();
  let ended = 0;
  const end = () => void (ended += 1);
  const names = Array.from({ length: keys }, (_, i) => `parked:${i}`);
  const park = (i, options) => locks.acquire(names[i % keys], options).catch(end);
  // What the caller itself keeps is next to nothing.
  const wait = { ttlMs: 1000, waitMs: 600_000 };
  const withSignal = { ...wait, signal: stop.signal };

  // What is loaded and compiled at the first use does not count.
  const first = new AbortController();
  setMaxListeners(0, stop.signal, first.signal);
  const early = Array.from({ length: 200 }, (_, i) => park(i, { ...wait, signal: first.signal }));
  await inLine(locks, 200);
  first.abort();
  await Promise.all(early);

  const base = clean();
  const waits = Array.from({ length: waiters }, (_, i) => park(i, i % 2 ? wait : withSignal));
  await inLine(locks, waiters);
  const bytes = (clean() - base) / waiters;
  say({ bytes, waiting: locks.waiting });

  process.stdin.resume();
  await once(process.stdin, 'end');
  stop.abort();
  await locks.close();
  await Promise.all(waits);
  const after = listeners();
  redis.disconnect();
  await once(redis, 'end');
  await new Promise((resolve) => setImmediate(resolve));
  say({
    ended: ended - 200,
    waiting: locks.waiting,
    listeners: before === after ? 'as before' : { before, after },
    onSignals: getEventListeners(stop.signal, 'abort').length + getEventListeners(first.signal, 'abort').length,
    resources: process.getActiveResourcesInfo().filter((name) => !/^(Pipe|TTY|PipeWrap|TTYWrap)/.test(name)),
  });
}

process.on('unhandledRejection', (error) => {
  say({ unhandled: String(error) });
  process.exit(3);
});
void main();

'use strict';

// One process of the storm: tasks that take locks, change files which nothing but the locks protect, and write down
// what they saw, each line before the next step is taken, so that a killed process leaves a true history.
//
// All moments are by the clock of this machine, which is Redis' clock too. A file's value is read and written in one
// system call each, so a kill leaves the old value or the new one.

const fs = require('node:fs');
const { setTimeout: delay, setImmediate: turn } = require('node:timers/promises');

const { engine, url, folder, name, seed, tasks, jobs, ttlMs, waitMs, confirm, report } = JSON.parse(process.argv[2]);
const { createLocks } = require(engine);

const locks = createLocks({ url }, { fencingRetentionMs: 1000 });
const history = fs.openSync(`${folder}/${name}.history`, 'a');
const note = (what, more) => fs.writeSync(history, `${JSON.stringify({ what, process: name, at: Date.now(), ...more })}\n`);

let state = seed;
const random = () => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};

// The ticket of a waiter: its moment of arrival by Redis' clock.
const { transitions } = locks;
const acquire = transitions.acquire.bind(transitions);
const placed = new Set();
transitions.acquire = async (caller, ...rest) => {
  const reply = await acquire(caller, ...rest);
  if (reply.outcome === 'waiting' && !placed.has(caller.lockId)) {
    placed.add(caller.lockId);
    note('place', { id: caller.lockId, ticket: reply.ticket });
  }
  return reply;
};

const values = fs.readdirSync(folder).filter((file) => file.startsWith('value-'));
const files = Object.fromEntries(values.map((file) => [file.slice(6), fs.openSync(`${folder}/${file}`, 'r+')]));
const read = (file) => {
  const bytes = Buffer.alloc(16);
  fs.readSync(file, bytes, 0, 16, 0);
  return Number(bytes.toString());
};
const write = (file, value) => fs.writeSync(file, Buffer.from(String(value).padStart(16, '0')), 0, 16, 0);

/** So long an event is remembered as done: longer than anybody may come late. */
const DONE_MS = 60_000;
const EVENT_MS = 40;

/** What there is to do: which keys, how they are asked for, and how they are given back. */
const kinds = {
  turn: ({ key, limit = 1 }, options) => ({ keys: [key], limit, take: () => locks.acquire(key, { ...options, limit }) }),
  shared: ({ key }, options) => {
    const writes = random() < 0.2;
    return { keys: [key], limit: writes ? 1 : 1_000_000, take: () => locks.acquire(key, { ...options, mode: writes ? 'exclusive' : 'shared' }) };
  },
  // One of the events of the last second; now and then its work fails.
  once: ({ key }, options) => {
    const event = `${key}:${Math.floor(Date.now() / EVENT_MS) - Math.floor((1000 / EVENT_MS) * random())}`;
    const done = random() < 0.9 ? { doneForMs: DONE_MS, result: options.lockId } : undefined;
    return { keys: [event], kind: 'once', done, take: () => locks.acquireOnce(event, options) };
  },
  newest: ({ key }, options) => {
    const owner = { executionId: options.lockId };
    return { keys: [key], kind: 'newest', take: () => locks.acquire(key, { ...options, owner, waiting: 'newest' }) };
  },
  // Two or three of them, in any order.
  list: (job, options) => {
    const named = [...job.keys].sort(() => random() - 0.5).slice(0, 2 + Math.floor(2 * random()));
    return { keys: [...named].sort(), kind: 'list', take: () => locks.acquireAll(named, options) };
  },
};

/** @param held locks, each with the id under which it is written down */
async function section(held) {
  for (const each of held) {
    if (each.file) each.value = read(each.file);
    note('begin', { id: each.id, value: each.value });
  }
  if (random() < 0.003) {
    // Long, and kept by heartbeats.
    for (let i = 0; i < 4; i++) {
      await delay(ttlMs / 5);
      for (const { lock, id } of held) {
        const beat = await lock.heartbeat();
        note('beat', { id, outcome: beat.outcome, expiresAt: beat.expiresAt, revived: beat.revived });
        if (beat.outcome === 'lost') return;
      }
    }
  } else if (random() < 0.1) await delay(1 + 4 * random());
  else await turn();
  const kept = held.every(({ lock }) => lock.expiresInMs() > 0);
  for (const { id, file, writes, value = 0 } of held) {
    const wrote = writes ? value + 1 : value;
    if (kept && file && writes) write(file, wrote);
    note('end', kept ? { id, wrote } : { id });
  }
}

let sections = 0;
let stopping = false;

async function task(number) {
  for (let i = 0; !stopping; i++) {
    const job = jobs[Math.floor(random() * jobs.length)];
    const id = `${name}.${number}.${i}`;
    const { keys, limit = 1, kind, take, done } = kinds[job.kind](job, { ttlMs, waitMs, lockId: id, confirm });
    // The engine makes an id for each of several keys from that of the whole.
    const asked = keys.map((key, n) => ({ key, id: kind === 'list' ? `${id}.${n}` : id, file: files[key], writes: limit === 1 }));
    for (const each of asked) note('ask', { id: each.id, key: each.key, limit, kind });
    const result = await take();
    for (const each of asked) placed.delete(each.id);
    if (result.outcome !== 'acquired') {
      const why = { outcome: result.outcome, doneBefore: result.done?.fencingToken, supersededBy: result.newer?.executionId };
      for (const each of asked) note('out', { id: each.id, ...why });
      // Who comes anew at once would put out the next one.
      if (why.supersededBy) await delay(20 * random());
      continue;
    }
    const held = asked.map((each, n) => ({ ...each, lock: (result.locks ?? [result.lock])[n] }));
    for (const each of held) {
      // Those of a list were renewed while others were waited for.
      const expiresAt = kind === 'list' ? Date.now() + each.lock.expiresInMs() : each.lock.grant.expiresAt;
      note('got', { id: each.id, token: each.lock.fencingToken, expiresAt });
      // Entered on the message: until the claim is confirmed the lease is as short as an unclaimed hand-over.
      each.lock.claim?.then((answer) => note('beat', { id: each.id, outcome: answer.outcome, expiresAt: answer.expiresAt }));
    }
    await section(held);
    for (const each of held) {
      const { outcome, reason } = await each.lock.release(done);
      note('released', { id: each.id, outcome, reason, done: done !== undefined });
    }
    sections += held.length;
    if (sections % report < held.length && process.connected) process.send(report);
  }
}

// Also when the test itself ended before its time.
for (const end of ['message', 'disconnect']) process.on(end, () => (stopping = true));
process.on('unhandledRejection', (error) => {
  note('unhandled', { error: String(error) });
  process.exit(3);
});

Promise.all(Array.from({ length: tasks }, (_, number) => task(number)))
  .then(() => locks.close())
  .then(() => process.connected && process.disconnect())
  .catch((error) => {
    note('failed', { error: String(error) });
    process.exit(4);
  });

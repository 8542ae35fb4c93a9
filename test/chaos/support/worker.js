'use strict';

// One process of the storm: tasks that take locks, change a file which nothing but the lock protects, and write down
// what they saw, each line before the next step is taken, so that a killed process leaves a true history.
//
// All moments are by the clock of this machine, which is Redis' clock too. A file's value is read and written in one
// system call each, so a kill leaves the old value or the new one.

const fs = require('node:fs');
const { setTimeout: delay, setImmediate: turn } = require('node:timers/promises');

const { engine, url, folder, name, seed, tasks, keys, ttlMs, waitMs, confirm } = JSON.parse(process.argv[2]);
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

const files = Object.fromEntries(keys.map(({ key }, i) => [key, fs.openSync(`${folder}/value-${i}`, 'r+')]));
const read = (file) => {
  const bytes = Buffer.alloc(16);
  fs.readSync(file, bytes, 0, 16, 0);
  return Number(bytes.toString());
};
const write = (file, value) => fs.writeSync(file, Buffer.from(String(value).padStart(16, '0')), 0, 16, 0);

async function section(lock, id, key) {
  const value = read(files[key]);
  note('begin', { id, value });
  if (random() < 0.003) {
    // Long, and kept by heartbeats.
    for (let i = 0; i < 4; i++) {
      await delay(ttlMs / 5);
      const beat = await lock.heartbeat();
      note('beat', { id, outcome: beat.outcome, expiresAt: beat.expiresAt, revived: beat.revived });
      if (beat.outcome === 'lost') return;
    }
  } else if (random() < 0.1) await delay(1 + 4 * random());
  else await turn();
  if (lock.expiresInMs() > 0) {
    write(files[key], value + 1);
    note('end', { id, wrote: value + 1 });
  } else note('end', { id });
}

let sections = 0;
let stopping = false;

async function task(number) {
  for (let i = 0; !stopping; i++) {
    const { key, limit } = keys[Math.floor(random() * keys.length)];
    const id = `${name}.${number}.${i}`;
    note('ask', { id, key });
    const result = await locks.acquire(key, { ttlMs, waitMs, limit, lockId: id, confirm });
    placed.delete(id);
    if (result.outcome !== 'acquired') {
      note('out', { id, outcome: result.outcome });
      continue;
    }
    const { lock } = result;
    note('got', { id, token: lock.fencingToken, expiresAt: lock.grant.expiresAt });
    // Entered on the message: until the claim is confirmed the lease is as short as an unclaimed hand-over.
    lock.claim?.then(({ outcome, expiresAt }) => note('beat', { id, outcome, expiresAt }));
    await section(lock, id, key);
    const { outcome, reason } = await lock.release();
    note('released', { id, outcome, reason });
    sections += 1;
    if (sections % 20 === 0 && process.connected) process.send(20);
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

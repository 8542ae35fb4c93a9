'use strict';

// A process of its own that uses locks: what the test tells it on its channel it does, and reports.

require('./typescript');
const { createLocks } = require('../../../engine');

const locks = createLocks({ url: process.argv[2] });
const held = new Map();

const actions = {
  async acquire({ name, key, options }) {
    const { outcome, lock } = await locks.acquire(key, options);
    if (lock) held.set(name, lock);
    return { outcome, fencingToken: lock?.fencingToken };
  },
  async release({ name }) {
    return { outcome: (await held.get(name).release()).outcome };
  },
  async heartbeat({ name }) {
    return { outcome: (await held.get(name).heartbeat()).outcome };
  },
  /** Answers when the work has begun, which never ends. */
  use: ({ key, options }) =>
    new Promise((resolve, reject) => {
      const work = ({ fencingToken }) => new Promise(() => resolve({ outcome: 'acquired', fencingToken }));
      locks.using(key, options, work).catch(reject);
    }),
  /** Ms of CPU that this process has used. */
  async cpu() {
    const { user, system } = process.cpuUsage();
    return { cpuMs: (user + system) / 1000 };
  },
};

process.on('message', (order) => {
  actions[order.action](order).then(
    (answer) => process.send({ id: order.id, ...answer, at: Date.now() }),
    (error) => process.send({ id: order.id, error: error.message }),
  );
});
process.send({ id: 0 });

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
};

process.on('message', (order) => {
  actions[order.action](order).then(
    (answer) => process.send({ id: order.id, ...answer, at: Date.now() }),
    (error) => process.send({ id: order.id, error: error.message }),
  );
});
process.send({ id: 0 });

'use strict';

/*
 * One n8n process without a server: runs workflows through the WorkflowExecute of one n8n-core.
 * A process of its own, because n8n-core needs Node's own module loader.
 *
 *   node host.js <engine folder> <file of the built node>
 *
 * Messages in:  { type: 'run', id, request }   { type: 'cancel', id }   { type: 'letGo', id, node }
 * Messages out: { type: 'ready' }   { type: 'event', id, name, … }   { type: 'done', id, answer | failure }
 *               { type: 'unhandled', error }
 */

const [engineFolder, builtNode] = process.argv.slice(2);
require('./resolve').resolveEngineFrom(engineFolder);

const { createTestNodes } = require('./testNodes');
const { startExecution } = require('./execution');
const { errorOf } = require('./answer');

const REDIS_LOCK = 'n8n-nodes-redis-lock.redisLock';

const executions = new Map();
const holding = new Map();

function send(message) {
  if (process.connected) process.send(message);
}

function emit(id, name, details = {}) {
  send({ type: 'event', id, name, ...details });
}

function hold(executionId, node) {
  const id = [...executions.keys()].find((key) => executions.get(key).executionId === executionId);
  return new Promise((resolve) => {
    holding.set(`${id} ${node}`, resolve);
    emit(id, 'holding', { node });
  });
}

function createNodeTypes() {
  const types = createTestNodes({ hold });
  const { RedisLock } = require(builtNode);
  types[REDIS_LOCK] = new RedisLock();
  const find = (name) => {
    if (!types[name]) throw new Error(`No node of type "${name}"`);
    return types[name];
  };
  return { getByName: find, getByNameAndVersion: find, getKnownTypes: () => ({}) };
}

const nodeTypes = createNodeTypes();

async function run(id, request) {
  executions.set(id, { executionId: request.executionId, cancel: () => {} });
  try {
    const execution = startExecution(request, nodeTypes, (name, details) => emit(id, name, details));
    executions.get(id).cancel = execution.cancel;
    send({ type: 'done', id, answer: await execution.finished });
  } catch (error) {
    send({ type: 'done', id, failure: errorOf(error) });
  } finally {
    executions.delete(id);
  }
}

const handlers = {
  run: ({ id, request }) => void run(id, request),
  cancel: ({ id }) => executions.get(id)?.cancel(),
  letGo: ({ id, node }) => {
    holding.get(`${id} ${node}`)?.();
    holding.delete(`${id} ${node}`);
  },
};

process.on('message', (message) => handlers[message.type](message));
process.on('disconnect', () => process.exit());
for (const event of ['unhandledRejection', 'uncaughtException']) {
  process.on(event, (error) => send({ type: 'unhandled', error: `${event}: ${error?.stack ?? error}` }));
}

send({ type: 'ready' });

'use strict';

/*
 * One n8n process without a server: runs workflows through the WorkflowExecute of one n8n-core.
 * A process of its own, because n8n-core needs Node's own module loader.
 *
 *   node host.js <engine folder> <file of the built node>
 *
 * Messages in:  { type: 'run', id, request }   { type: 'cancel', id }   { type: 'letGo', id, node }
 *               { type: 'usage', id }, answered by one of the same type
 * Messages out: { type: 'ready' }   { type: 'event', id, name, … }   { type: 'done', id, answer | failure }
 *               { type: 'child', id, executionId, workflowId, answer | failure }   { type: 'unhandled', error }
 */

const [engineFolder, builtNode] = process.argv.slice(2);
require('./resolve').resolveEngineFrom(engineFolder);

const { createTestNodes } = require('./testNodes');
const { startExecution } = require('./execution');
const { errorOf } = require('./answer');
const { subWorkflowsOf } = require('./subWorkflows');

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
  const { id } = [...executions.values()].find((each) => each.executionId === executionId);
  return new Promise((resolve) => {
    holding.set(`${id} ${node}`, resolve);
    emit(id, 'holding', { node });
  });
}

/** What our node does not get to see of its context: see `RunOptions.tellsEnd`. */
const HIDDEN = { officially: ['additionalData'], not: ['additionalData', 'onExecutionFinish'] };

/** n8n's own methods go on seeing all of it. */
function without(context, names) {
  return new Proxy(context, {
    get(target, name) {
      const value = names.includes(name) ? undefined : target[name];
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

function limited(node) {
  const { execute } = node;
  node.execute = function () {
    const { tellsEnd } = this.additionalData.limits;
    return execute.call(tellsEnd ? without(this, HIDDEN[tellsEnd]) : this);
  };
  return node;
}

function createNodeTypes() {
  const types = createTestNodes({ hold });
  // What our node looks for by its type.
  types['n8n-nodes-base.wait'] = types['test.wait'];
  const { RedisLock } = require(builtNode);
  types[REDIS_LOCK] = limited(new RedisLock());
  const find = (name) => {
    if (!types[name]) throw new Error(`No node of type "${name}"`);
    return types[name];
  };
  return { getByName: find, getByNameAndVersion: find, getKnownTypes: () => ({}) };
}

const nodeTypes = createNodeTypes();

let children = 0;

/** A called workflow is one more execution of this process: it tells by the id of its caller's run, and answers there. */
function startChild(id, request) {
  const execution = startExecution(request, nodeTypes, (name, details) => emit(id, name, details), subWorkflows(id));
  const { executionId, workflow } = request;
  executions.set(`${id} ${executionId}`, { executionId, cancel: execution.cancel, id });
  execution.finished
    .then(
      (answer) => send({ type: 'child', id, executionId, workflowId: workflow.id, answer }),
      (error) => send({ type: 'child', id, executionId, workflowId: workflow.id, failure: errorOf(error) }),
    )
    .finally(() => executions.delete(`${id} ${executionId}`));
  return execution;
}

const subWorkflows = (id) =>
  subWorkflowsOf({ start: (request) => startChild(id, request), nextId: () => `${process.pid}${++children}` });

async function run(id, request) {
  executions.set(id, { executionId: request.executionId, cancel: () => {}, id });
  try {
    const execution = startExecution(request, nodeTypes, (name, details) => emit(id, name, details), subWorkflows(id));
    executions.get(id).cancel = execution.cancel;
    send({ type: 'done', id, answer: await execution.finished });
  } catch (error) {
    send({ type: 'done', id, failure: errorOf(error) });
  } finally {
    executions.delete(id);
  }
}

/** What is left of finished executions, for a test that counts. */
function usage(id) {
  global.gc?.();
  const resources = process.getActiveResourcesInfo();
  const count = (name) => resources.filter((each) => each === name).length;
  send({ type: 'usage', id, timers: count('Timeout'), sockets: count('TCPSocketWrap'), heapUsed: process.memoryUsage().heapUsed });
}

const handlers = {
  run: ({ id, request }) => void run(id, request),
  usage: ({ id }) => usage(id),
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

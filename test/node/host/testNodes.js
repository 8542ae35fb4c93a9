'use strict';

const { NodeOperationError } = require('n8n-workflow');

/** Far enough away that no test ever reaches it. */
const ONE_HOUR_MS = 3_600_000;

function nodeType(name, { outputs = ['main'], outputNames, properties = [], execute }) {
  return {
    description: {
      displayName: name,
      name,
      group: ['transform'],
      version: 1,
      description: name,
      defaults: { name },
      inputs: ['main'],
      outputs,
      outputNames,
      properties,
    },
    execute,
  };
}

const text = (name) => ({ displayName: name, name, type: 'string', default: '' });

/**
 * The nodes that tests put around Redis Lock, by their type.
 * `hold(execution, nodeName)` resolves when the test lets that node go on.
 */
function createTestNodes({ hold }) {
  return {
    'test.start': nodeType('start', {
      async execute() {
        return [this.getInputData()];
      },
    }),

    'test.pass': nodeType('pass', {
      async execute() {
        return [this.getInputData()];
      },
    }),

    // Like an HTTP Request or a database node: what comes out has nothing of what went in.
    'test.replace': nodeType('replace', {
      properties: [text('json')],
      async execute() {
        const json = JSON.parse(this.getNodeParameter('json', 0));
        return [this.getInputData().map((_, item) => ({ json, pairedItem: { item } }))];
      },
    }),

    // Fails in the first execution that meets it, and never again in a retry of that execution.
    'test.boom': nodeType('boom', {
      async execute() {
        if (this.getMode() === 'retry') return [this.getInputData()];
        throw new NodeOperationError(this.getNode(), 'boom');
      },
    }),

    'test.hold': nodeType('hold', {
      async execute() {
        await hold(this.additionalData.executionId, this.getNode().name);
        return [this.getInputData()];
      },
    }),

    'test.wait': nodeType('wait', {
      async execute() {
        await this.putExecutionToWait(new Date(Date.now() + ONE_HOUR_MS));
        return [this.getInputData()];
      },
    }),

    // Like Loop Over Items with a batch size of 1.
    'test.loop': nodeType('loop', {
      outputs: ['main', 'main'],
      outputNames: ['done', 'loop'],
      async execute() {
        const state = this.getContext('node');
        if (state.left === undefined) {
          state.left = [...this.getInputData()];
          state.done = [];
        } else {
          state.done.push(...this.getInputData());
        }
        const next = state.left.shift();
        return next === undefined ? [state.done, []] : [[], [next]];
      },
    }),
  };
}

module.exports = { createTestNodes };

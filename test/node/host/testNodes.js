'use strict';

const { NodeOperationError } = require('n8n-workflow');

/** Far enough away that no test ever reaches it. */
const ONE_HOUR_S = 3600;

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

const number = (name, value) => ({ displayName: name, name, type: 'number', default: value });
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
      properties: [number('seconds', ONE_HOUR_S)],
      async execute() {
        const seconds = this.getNodeParameter('seconds', 0, 3600);
        await this.putExecutionToWait(new Date(Date.now() + seconds * 1000));
        return [this.getInputData()];
      },
    }),

    // Like Execute Workflow.
    'test.call': nodeType('call', {
      properties: [text('workflowId'), text('mode'), { displayName: 'wait', name: 'wait', type: 'boolean', default: true }],
      async execute() {
        const waits = this.getNodeParameter('wait', 0) !== false;
        const info = { id: this.getNodeParameter('workflowId', 0) };
        const items = this.getInputData();
        const call = async (some) => {
          const parentExecution = { executionId: this.getExecutionId(), workflowId: this.getWorkflow().id, shouldResume: waits };
          return await this.executeWorkflow(info, some, undefined, { parentExecution, doNotWaitToFinish: !waits });
        };
        if (this.getNodeParameter('mode', 0) !== 'each') {
          const { data } = await call(items);
          return waits ? data : [items];
        }
        const all = [];
        for (const item of items) all.push(...((await call([item])).data[0] ?? [item]));
        return [all];
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

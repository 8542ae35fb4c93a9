'use strict';

/** The run data that n8n makes for a workflow that another one calls (`getRunData` of its additional data). */
function runDataFor(workflow, items, parentExecution) {
  const node = workflow.nodes.find(({ name }) => name === 'Start');
  return {
    startData: {},
    resultData: { runData: {} },
    executionData: {
      contextData: {},
      metadata: {},
      nodeExecutionStack: [{ node, data: { main: [items] }, metadata: { parentExecution }, source: null }],
      waitingExecution: {},
      waitingExecutionSource: {},
    },
    parentExecution,
  };
}

/** What n8n hands back of a workflow that was called: the output of its last node. */
function lastOutput({ resultData: { runData, lastNodeExecuted } }) {
  return runData[lastNodeExecuted]?.at(-1)?.data?.main ?? [[]];
}

/**
 * `additionalData.executeWorkflow` as n8n's server has it: the called workflow runs in this process, as an execution of
 * its own with hooks of its own. A stop of the caller does not reach it; the caller's deadline does.
 * `start(request)` starts an execution, `nextId()` gives it an id.
 */
function subWorkflowsOf({ start, nextId }) {
  return (caller) => async (info, callerData, options) => {
    const workflow = caller.workflows?.find(({ id }) => id === info.id);
    if (!workflow) throw new Error('Workflow does not exist.');
    const executionId = nextId();
    const execution = start({
      ...caller,
      workflow,
      executionId,
      mode: 'integrated',
      continueFrom: undefined,
      executionTimeoutTimestamp: callerData.executionTimeoutTimestamp,
      runData: runDataFor(workflow, options.inputData ?? [], options.parentExecution),
    });
    if (options.doNotWaitToFinish) {
      execution.run.catch(() => {});
      return { executionId, data: [null] };
    }
    const run = await execution.run;
    if (run.finished === true || run.status === 'waiting') {
      return { executionId, data: lastOutput(run.data), waitTill: run.waitTill };
    }
    throw Object.assign(new Error(run.data.resultData.error?.message), { ...run.data.resultData.error });
  };
}

module.exports = { subWorkflowsOf, lastOutput };

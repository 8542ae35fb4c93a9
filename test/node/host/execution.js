'use strict';

const { ExecutionLifecycleHooks, WorkflowExecute } = require('n8n-core');
const { Workflow } = require('n8n-workflow');
const { answerOf } = require('./answer');

const BASE_URL = 'http://localhost:5678';

/** Gives every node the credential that the request holds under the id that the node names. */
function credentialsHelper(credentials) {
  return {
    isCredentialUsableByNode: () => true,
    getParentTypes: () => [],
    async getDecrypted(_additionalData, { id }) {
      if (!credentials[id]) throw new Error(`The request has no credential "${id}"`);
      return { ...credentials[id] };
    },
  };
}

function createHooks({ mode, executionId, workflow }, emit) {
  const hooks = new ExecutionLifecycleHooks(mode, executionId, workflow);
  hooks.addHandler('nodeExecuteBefore', (node) => emit('nodeExecuteBefore', { node }));
  hooks.addHandler('nodeExecuteAfter', (node) => emit('nodeExecuteAfter', { node }));
  hooks.addHandler('workflowExecuteAfter', (run) => emit('workflowExecuteAfter', { status: run.status }));
  return hooks;
}

function createAdditionalData(request, hooks, subWorkflows) {
  return {
    credentialsHelper: credentialsHelper(request.credentials),
    executeWorkflow: subWorkflows(request),
    getRunExecutionData: async () => undefined,
    executionId: request.executionId,
    executionTimeoutTimestamp: request.executionTimeoutTimestamp,
    currentNodeExecutionIndex: 0,
    restApiUrl: `${BASE_URL}/rest`,
    instanceBaseUrl: `${BASE_URL}/`,
    formBaseUrl: `${BASE_URL}/form`,
    formWaitingBaseUrl: `${BASE_URL}/form-waiting`,
    formTestBaseUrl: `${BASE_URL}/form-test`,
    webhookBaseUrl: `${BASE_URL}/webhook`,
    webhookWaitingBaseUrl: `${BASE_URL}/webhook-waiting`,
    webhookTestBaseUrl: `${BASE_URL}/webhook-test`,
    workflowId: request.workflow.id,
    variables: {},
    externalSecretsProxy: {},
    limits: { tellsEnd: request.tellsEnd },
    setExecutionStatus: () => {},
    sendDataToUI: () => {},
    logAiEvent: () => {},
    hooks,
  };
}

/** What n8n's "Retry" does to the data of a failed execution before it runs it again under a new id. */
function stripFailedNode(data) {
  const { resultData } = data;
  delete resultData.error;
  const runs = resultData.runData[resultData.lastNodeExecuted] ?? [];
  if (runs.at(-1)?.error !== undefined) runs.pop();
  return data;
}

/** The two lines of n8n-core differ in how `run` takes its arguments. */
function runFromStart(execute, workflow, { startNode: start, items, destinationNode, pinData }) {
  const startNode = workflow.getNode(start);
  const destination = destinationNode && { nodeName: destinationNode, mode: 'inclusive' };
  const triggerToStartFrom = { name: startNode.name, data: { data: { main: [items] } } };
  const takesOptions = WorkflowExecute.prototype.run.length === 1;
  return takesOptions
    ? execute.run({
        workflow,
        startNode,
        destinationNode: destination,
        pinData,
        triggerToStartFrom,
      })
    : execute.run(workflow, startNode, destination, pinData, triggerToStartFrom);
}

function start(execute, workflow, request) {
  if (!request.continueFrom && !request.runData) {
    return runFromStart(execute, workflow, request);
  }
  return execute.processRunExecutionData(workflow);
}

function dataToContinue({ continueFrom, runData, mode }) {
  if (runData) return runData;
  if (!continueFrom) return undefined;
  const data = JSON.parse(continueFrom);
  return mode === 'retry' ? stripFailedNode(data) : data;
}

/**
 * One execution of one workflow, started the way n8n's own WorkflowRunner starts it.
 * `emit(name, details)` tells what happens on the way, `subWorkflows(request)` is what its nodes call others with.
 */
function startExecution(request, nodeTypes, emit, subWorkflows) {
  const workflow = new Workflow({ active: true, nodeTypes, ...request.workflow });
  const nodesBefore = JSON.parse(JSON.stringify(workflow.nodes));
  const hooks = createHooks(request, emit);
  const additionalData = createAdditionalData(request, hooks, subWorkflows);
  const execute = new WorkflowExecute(additionalData, request.mode, dataToContinue(request));
  const running = start(execute, workflow, request);

  return {
    run: running,
    finished: running.then((run) => answerOf(run, nodesBefore, workflow.nodes)),
    cancel: () => running.cancel(),
  };
}

module.exports = { startExecution };

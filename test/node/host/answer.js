'use strict';

function errorOf(error) {
  if (!error) return undefined;
  return {
    name: error.name,
    message: error.message,
    description: error.description ?? undefined,
    node: error.node?.name,
    itemIndex: error.context?.itemIndex,
  };
}

function itemOf({ json, binary, pairedItem, error }) {
  return { json, binary, pairedItem, error: errorOf(error) };
}

function runOf(task) {
  return {
    outputs: (task.data?.main ?? []).map((items) => items?.map(itemOf) ?? null),
    status: task.executionStatus,
    error: errorOf(task.error),
    hints: task.hints ?? [],
    order: task.executionIndex,
  };
}

function changedNodes(before, after) {
  return Object.keys(before).filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]));
}

/** What the host tells of a finished run. All of it is plain JSON. */
function answerOf(run, nodesBefore, nodesAfter) {
  const { runData, error } = run.data.resultData;
  const runs = {};
  for (const [node, tasks] of Object.entries(runData)) runs[node] = tasks.map(runOf);
  return {
    status: run.status,
    error: errorOf(error),
    runs,
    changedNodes: changedNodes(nodesBefore, nodesAfter),
    // As in n8n's database: enough to retry or to resume the execution, in this process or another.
    data: JSON.stringify(run.data),
  };
}

module.exports = { answerOf, errorOf };

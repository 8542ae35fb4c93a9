'use strict';

// What two runs of the example did, told as a short time line.

const { styleText } = require('node:util');

const COLOURS = process.stdout.isTTY && !process.env.NO_COLOR;

/** @param {Parameters<typeof styleText>[0]} style @param {string} text */
function paint(style, text) {
  return COLOURS ? styleText(style, text) : text;
}

/**
 * The events of some executions of the example, in the order in which they happened.
 *
 * @param {Array<{ id: string, data: { resultData: { runData: object } } }>} executions from `N8nApi.execution`
 * @returns {Array<{ at: number, kind: 'asks' | 'wins' | 'busy' | 'releases' | 'keeps', execution: string, lock: object }>} `at` in ms
 */
function eventsOf(executions) {
  const events = executions.flatMap(({ id, data }) => {
    const { runData } = data.resultData;
    const found = [];
    const add = (node, end, kindOf) => {
      for (const run of runData[node] ?? []) {
        const output = (run.data?.main ?? []).findIndex((items) => items?.length > 0);
        if (output < 0) continue;
        const lock = run.data.main[output][0].json.lock ?? {};
        found.push({ at: run.startTime + (end ? run.executionTime : 0), kind: kindOf(output), execution: id, lock });
      }
    };
    add('Acquire', false, () => 'asks');
    add('Acquire', true, (output) => (output === 0 ? 'wins' : 'busy'));
    add('Release', true, (output) => (output === 0 ? 'releases' : 'keeps'));
    return found;
  });
  return events.sort((a, b) => a.at - b.at);
}

const SAY = {
  asks: ({ lock }) => paint('dim', `asks for ${lock.key}`),
  wins: ({ lock }) => paint('green', `wins (fencing token ${lock.fencingToken}) and starts to work`),
  busy: ({ lock: { holder } }) =>
    paint(
      'yellow',
      `is told Busy: held by execution ${holder?.executionId} of "${holder?.workflowName}", node "${holder?.nodeName}"`,
    ),
  releases: () => paint('cyan', 'has done its work and releases the lock'),
  keeps: ({ lock }) => paint('red', `does not hold the lock any more: ${lock.reason ?? ''}`),
};

/**
 * @param {ReturnType<typeof eventsOf>} events
 * @returns {string[]} lines to print
 */
function timeline(events) {
  const [first] = events;
  return events.map((event) => {
    const seconds = ((event.at - first.at) / 1000).toFixed(2).padStart(6);
    return `${seconds} s  ${paint('bold', `execution ${event.execution}`)} ${SAY[event.kind](event)}`;
  });
}

module.exports = { eventsOf, timeline, paint };

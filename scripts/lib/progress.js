'use strict';

// Long steps (an n8n takes minutes to install) must not look like a hang. Goes to stderr, so that what a
// script prints as its result stays clean.

/**
 * Shows a line with the elapsed seconds while `work` runs: rewritten in place on a terminal, a new line every
 * 15 s elsewhere (a CI log).
 *
 * @template T
 * @param {string} label
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
async function withProgress(label, work) {
  const out = process.stderr;
  const began = Date.now();
  const seconds = () => Math.round((Date.now() - began) / 1000);
  const show = out.isTTY
    ? () => out.write(`\r${label} … ${seconds()} s `)
    : () => out.write(`${label} … ${seconds()} s\n`);
  show();
  const timer = setInterval(show, out.isTTY ? 1000 : 15_000);
  const end = (how) => {
    clearInterval(timer);
    out.write(`${out.isTTY ? '\r' : ''}${label}: ${how} after ${seconds()} s\n`);
  };
  try {
    const result = await work();
    end('done');
    return result;
  } catch (error) {
    end('failed');
    throw error;
  }
}

module.exports = { withProgress };

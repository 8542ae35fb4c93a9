'use strict';

// The last line of cleaning up. A script that is killed by SIGKILL cannot end what it started, so a small process of
// its own stands by: it holds the other end of a pipe, which the kernel closes when the script is gone, whichever way.

const fs = require('node:fs');
const path = require('node:path');

/**
 * Ends a process and the children that it has started, given that it leads its own process group.
 *
 * @param {number} pid
 * @param {NodeJS.Signals} signal
 */
function signalGroup(pid, signal) {
  try {
    process.kill(-pid, signal);
  } catch {
    // It has ended already.
  }
}

/**
 * When the kernel says the process began: tells a recycled pid from the process that was started.
 *
 * @param {number} pid
 * @returns {string} empty where that cannot be known
 */
function startMark(pid) {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
  } catch {
    return '';
  }
}

/**
 * Ends all processes that are listed in a folder's `running`, one file per pid, and removes the folder.
 *
 * @param {string} folder
 */
function sweep(folder) {
  const registry = path.join(folder, 'running');
  if (!fs.existsSync(registry)) return;
  for (const name of fs.readdirSync(registry)) {
    const mark = fs.readFileSync(path.join(registry, name), 'utf8');
    if (mark === startMark(Number(name))) signalGroup(Number(name), 'SIGKILL');
  }
  fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
}

module.exports = { signalGroup, startMark, sweep };

// `node sweep.js FOLDER`: sweeps when its standard input ends.
if (require.main === module) {
  process.stdin.resume().once('close', () => sweep(process.argv[2]));
  // Ctrl-C is for the script; this one goes when the script is gone.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => {});
}

'use strict';

// Programs on the path, and how to get one that is missing on a Debian machine.

const fs = require('node:fs');
const path = require('node:path');
const { run } = require('./processes');
const { withProgress } = require('./progress');

/** @returns {string | undefined} the full path of a command on the path */
function which(command) {
  for (const folder of (process.env.PATH ?? '').split(path.delimiter)) {
    const file = path.join(folder, command);
    try {
      fs.accessSync(file, fs.constants.X_OK);
      return file;
    } catch {
      // not in this folder
    }
  }
  return undefined;
}

/** Whether this script may install Debian packages: root on a machine with apt. */
function mayInstall() {
  return process.getuid?.() === 0 && which('apt-get') !== undefined;
}

/**
 * A program, installed by apt where it is missing and may be installed. No service of the package's own is started.
 *
 * @param {string} name of the Debian package
 * @param {() => string | undefined} find
 * @param {string} remedy what a person can do where this script may not
 * @returns {Promise<string>} its path
 * @throws {Error} with the remedy
 */
async function ensureProgram(name, find, remedy) {
  const found = find();
  if (found) return found;
  if (!mayInstall()) {
    throw new Error(`There is no ${name} on this machine, and it can only be installed by root (Debian, Ubuntu). ${remedy}`);
  }
  await withProgress(`No ${name} here: installing it by apt-get`, async () => {
    const options = { quiet: true, env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' } };
    await run('apt-get', ['update'], options);
    // RUNLEVEL=1 and this policy keep the package from starting a service of its own on the standard port.
    const undo = forbidServices();
    try {
      await run('apt-get', ['install', '-y', '--no-install-recommends', name], options);
    } finally {
      undo();
    }
  });
  const installed = find();
  if (!installed) throw new Error(`apt-get installed ${name}, but its program is not where it is looked for.`);
  return installed;
}

function forbidServices() {
  const policy = '/usr/sbin/policy-rc.d';
  if (fs.existsSync(policy)) return () => {};
  fs.writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755 });
  return () => fs.rmSync(policy, { force: true });
}

module.exports = { which, mayInstall, ensureProgram };

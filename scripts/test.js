'use strict';

// `npm test`, also as the first command after `git clone`: installs what is missing, builds, lints, looks at the packed
// package, and runs all tests. The last line sums them up.
//
//   --fast    without n8n's server and without the tests that take long: no end-to-end tests, and n8n is not installed
//   --compat  only the end-to-end tests, on the older versions of n8n

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ensureDependencies, build } = require('./lib/dependencies');
const { compatVersions, ensureN8n, MAIN_VERSION } = require('./lib/n8n-versions');
const { npm } = require('./lib/npm');
const { complaintsAbout, packPackage, ROOT } = require('./lib/package');
const { run, superviseProcesses } = require('./lib/processes');
const { withProgress } = require('./lib/progress');
const { ensureRedisServer } = require('./lib/redis');

const total = { passed: 0, failed: 0 };
const failedSteps = [];

function title(text) {
  console.log(`\n=== ${text}`);
}

/** A step whose failure does not keep the later ones from running. */
async function step(name, work) {
  title(name);
  try {
    await work();
  } catch (error) {
    console.error(error.message);
    failedSteps.push(name);
  }
}

async function checkPackage() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'redis-lock-pack-'));
  try {
    const packed = await packPackage(folder);
    const complaints = complaintsAbout(packed);
    if (complaints.length > 0) throw new Error(complaints.join('\n'));
    console.log(`${packed.files.length} files, ${packed.unpackedSize} bytes unpacked`);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

/** Runs jest and adds up what it counted. */
async function jest(args, env = {}) {
  const report = path.join(os.tmpdir(), `redis-lock-jest-${process.pid}-${Date.now()}.json`);
  const binary = path.join(ROOT, 'node_modules', 'jest', 'bin', 'jest.js');
  let failure;
  try {
    await run(process.execPath, [binary, ...args, '--json', `--outputFile=${report}`], {
      cwd: ROOT,
      env: { ...process.env, ...env },
      // With --json jest prints the report to stdout as well; what a person reads goes to stderr.
      stdio: ['ignore', 'ignore', 'inherit'],
    });
  } catch (error) {
    failure = error;
  }
  if (fs.existsSync(report)) {
    const { numPassedTests, numFailedTests, numRuntimeErrorTestSuites } = JSON.parse(fs.readFileSync(report, 'utf8'));
    fs.rmSync(report);
    total.passed += numPassedTests;
    total.failed += numFailedTests + numRuntimeErrorTestSuites;
    if (numFailedTests + numRuntimeErrorTestSuites > 0) return;
  }
  // Failed although no test did: the set-up, or nothing was found to run.
  if (failure) throw new Error('jest failed');
}

async function endToEnd(version) {
  // The demo is about one version only.
  const withoutDemo = version === MAIN_VERSION ? [] : ['--testPathIgnorePatterns', 'demo.test'];
  await step(`End-to-end tests on n8n ${version}`, async () => {
    await ensureN8n(version);
    await jest(['--selectProjects', 'e2e', '--runInBand', ...withoutDemo], { REDIS_LOCK_E2E_N8N: version });
  });
}

async function main() {
  const options = process.argv.slice(2);
  const unknown = options.find((option) => !['--fast', '--compat'].includes(option));
  if (unknown) throw new Error(`Unknown option ${unknown}. There are --fast and --compat.`);
  const only = options[0];

  superviseProcesses();
  title('Packages');
  await ensureDependencies();
  console.log(`Redis: ${await ensureRedisServer()}`);
  // Quietly: the build draws a spinner, which fills a log with noise. What goes wrong is shown all the same.
  await withProgress('Building the package', () => build({ quiet: true }));

  if (only === '--compat') {
    for (const version of compatVersions()) await endToEnd(version);
    return;
  }
  await step('Lint', () => npm(['run', 'lint'], { cwd: ROOT, quiet: false }));
  await step('Packed package', checkPackage);
  // What waits for outages and frozen processes takes long, and is left to the full run, as the older line of n8n is.
  const isFast = only === '--fast';
  const fewer = isFast ? ['--testPathIgnorePatterns', 'engine/(faults|deadWaiters|refused|unknownOutcome)'] : [];
  const env = isFast ? { REDIS_LOCK_NEWEST_ONLY: '1' } : {};
  await step('Engine and node tests', () => jest(['--selectProjects', 'engine', 'node', ...fewer], env));
  if (only === '--fast') return;
  // Alone: a storm, and what is measured in it, suffer from a machine that does something else.
  await step('Model, storm, cluster', () => jest(['--selectProjects', 'chaos', '--runInBand']));
  await endToEnd(MAIN_VERSION);
}

main()
  .catch((error) => {
    console.error(error.message);
    failedSteps.push('set-up');
  })
  .finally(() => {
    console.log('');
    if (failedSteps.length > 0) console.log(`Failed: ${failedSteps.join(', ')}`);
    const failed = total.failed + failedSteps.length;
    console.log(`${total.passed} passed, ${failed} failed`);
    process.exit(failed > 0 ? 1 : 0);
  });

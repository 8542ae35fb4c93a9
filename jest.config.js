/** One project a kind of test: `npx jest --selectProjects engine -t "name of a test"`. */
const project = (name, extra) => ({
  displayName: name,
  testMatch: [`<rootDir>/test/${name}/**/*.test.ts`],
  testEnvironment: 'node',
  transform: { '^.+\\.ts$': ['ts-jest', { tsconfig: '<rootDir>/test/tsconfig.json', diagnostics: false }] },
  ...extra,
});

// One n8n for all of its tests.
const e2e = project('e2e', {
  globalSetup: '<rootDir>/test/e2e/globalSetup.js',
  globalTeardown: '<rootDir>/test/e2e/globalTeardown.js',
});

module.exports = {
  // Most of the time is spent waiting for servers.
  maxWorkers: 2,
  projects: [project('engine'), project('chaos'), project('node'), e2e],
};

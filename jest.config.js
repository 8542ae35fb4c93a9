/** One project a kind of test: `npx jest --selectProjects engine -t "name of a test"`. */
const project = (name, extra) => ({
  displayName: name,
  testMatch: [`<rootDir>/test/${name}/**/*.test.ts`],
  testEnvironment: 'node',
  transform: { '^.+\\.ts$': ['ts-jest', { tsconfig: '<rootDir>/test/tsconfig.json', diagnostics: false, isolatedModules: true }] },
  ...extra,
});

module.exports = {
  projects: [project('engine'), project('node'), project('e2e')],
};

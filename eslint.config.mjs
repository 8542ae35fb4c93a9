import { configWithoutCloudSupport } from '@n8n/node-cli/eslint';

export default [
	...configWithoutCloudSupport,
	{ ignores: ['test/**/fixtures/**', 'coverage/**'] },
	{
		// The engine speaks Redis through ioredis, which n8n installs as a plain dependency. Bundling it would
		// hide the dependency, not remove it.
		files: ['package.json'],
		rules: { '@n8n/community-nodes/no-runtime-dependencies': 'off' },
	},
	{
		// The whole point: the lock lives in the Redis that the user's workflows use already, under the credential
		// they already have.
		files: ['nodes/**/*.ts'],
		rules: { '@n8n/community-nodes/no-credential-reuse': 'off' },
	},
	{
		// Tests kill and freeze processes, as n8n's workers are; the package itself starts none.
		files: ['test/**/*.ts'],
		rules: { '@n8n/community-nodes/no-dangerous-functions': 'off' },
	},
];
